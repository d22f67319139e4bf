"""Kernels report the log-probabilities that torch reports."""

from __future__ import annotations

import pytest
import torch

from engine.cuda.logprobs import gather_logprobs
from engine.sampling import logprobs as reference
from engine.sampling.logprobs import Logprobs


def same(found: Logprobs, expected: Logprobs) -> None:
    assert found.rank.tolist() == expected.rank.tolist()
    assert found.top_ids.tolist() == expected.top_ids.tolist()
    torch.testing.assert_close(found.chosen.cpu(), expected.chosen, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.top_logprobs.cpu(), expected.top_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_top", [0, 1, 5, 900])
@pytest.mark.parametrize("size", [7, 300, 2050])
def test_reports_are_those_of_torch_with_equals_in_order_of_their_ids(
    device: torch.device, size: int, num_top: int
) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(size)).mul_(3).round_()
    targets = torch.tensor([0, size - 1, size // 2])
    found = gather_logprobs(logits.to(device), targets.to(device), num_top)
    same(found, reference.gather_logprobs(logits, targets, num_top))


def test_broken_logits_are_reported_as_torch_reports_them(device: torch.device) -> None:
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(1))
    logits[0, ::2], logits[1], logits[2, 3], logits[3, 5:] = torch.nan, -torch.inf, torch.inf, -0.0
    targets = torch.tensor([0, 7, 4, 39])
    found = gather_logprobs(logits.to(device), targets.to(device), 6)
    same(found, reference.gather_logprobs(logits.clone(), targets, 6))
    assert found.chosen.isfinite().all()
