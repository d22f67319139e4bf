"""The real xformers, where it is installed: its Triton kernel, interpreted or on a GPU."""

from __future__ import annotations

import os

import pytest
import torch

from engine.attention.xformers import XFormersBackend
from tests.engine.attention.test_contract import dense, make_step


@pytest.fixture(scope="module")
def backend() -> XFormersBackend:
    """A backend on the real library."""
    os.environ.setdefault("XFORMERS_ENABLE_TRITON", "1")  # it would look for a GPU
    pytest.importorskip("xformers")
    return XFormersBackend()


@pytest.mark.skipif(os.environ.get("WYE_TEST_DEVICE", "cpu") != "cpu", reason="the steps of this test are on the CPU")
@pytest.mark.parametrize("window", [None, 7, 50])
@pytest.mark.parametrize("page_size", [16, 32])
def test_it_attends_to_any_step_without_its_compiled_part(
    backend: XFormersBackend, window: int | None, page_size: int
) -> None:
    lanes = [(1, 1), (33, 60), (1, 150), (6, 90), (20, 20), (0, 30), (5, 17), (5, 40)]
    # The interpreter multiplies no bfloat16.
    step = make_step(
        lanes=lanes, page_size=page_size, head_dim=32, dtype=torch.float16, masked=frozenset({3, 4}), seed=page_size
    )
    backend.prepare(step.storage, step.query.shape[1], window)
    plan = backend.plan(step.layout, step.storage)
    output = backend.run(0, step.query, step.storage, plan, scale=0.3, sliding_window=window)
    torch.testing.assert_close(output.float(), dense(step, 0, 0.3, window).float(), atol=0.005, rtol=0)
