"""The model's own log-probabilities of chosen and likeliest tokens.

Letters: R rows, V vocabulary, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.sampling.processors import sanitize

LEAST_LOGPROB = -9999.0
"""Reported for anything less likely, so that every number is finite."""

_CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of one token a row.

    Attributes:
        chosen: [R] float32, natural logarithm, finite.
        rank: [R] int64, 1 for the likeliest; of equals the lower id comes first.
        top_ids: [R, K] int64, likeliest first.
        top_logprobs: [R, K] float32.
    """

    chosen: torch.Tensor
    rank: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


def gather_logprobs(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
    """Reports tokens and their likeliest alternatives. Waits for nothing on an accelerator.

    Args:
        logits: [R, V] float32; NaN and +inf are replaced in place.
        targets: [R] int64.
        num_top: K; more than V counts as V.
    """
    sanitize(logits)
    num_top = min(num_top, logits.shape[1])
    rows = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    slices = [slice(start, start + rows) for start in range(0, max(1, len(logits)), rows)]
    parts = [_gather(logits[part], targets[part], num_top) for part in slices]
    if len(parts) == 1:
        return parts[0]
    return Logprobs(
        chosen=torch.cat([part.chosen for part in parts]),
        rank=torch.cat([part.rank for part in parts]),
        top_ids=torch.cat([part.top_ids for part in parts]),
        top_logprobs=torch.cat([part.top_logprobs for part in parts]),
    )


def _gather(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, targets[:, None])
    top_values, top_ids = _likeliest(logits, num_top)
    on_cpu = logits.device.type == "cpu"
    return Logprobs(
        chosen=_finite(chosen - total).squeeze(1),
        rank=_rank_by_looking(logits, targets, top_ids) if on_cpu else _rank_by_counting(logits, targets, chosen),
        top_ids=top_ids,
        top_logprobs=_finite(top_values - total),
    )


def _rank_by_counting(logits: torch.Tensor, targets: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    ids = torch.arange(logits.shape[1], device=logits.device)
    return ((logits > chosen) | ((logits == chosen) & (ids < targets[:, None]))).sum(dim=-1) + 1


def _rank_by_looking(logits: torch.Tensor, targets: torch.Tensor, top_ids: torch.Tensor) -> torch.Tensor:
    """The same without a pass over the rows whose target is among the likeliest."""
    rank = torch.zeros_like(targets)
    row, place = (top_ids == targets[:, None]).nonzero(as_tuple=True)
    rank[row] = place + 1
    for missing in (rank == 0).nonzero().flatten().tolist():
        values, target = logits[missing], int(targets[missing])
        earlier, later = values[:target] >= values[target], values[target:] > values[target]
        rank[missing] = earlier.count_nonzero() + later.count_nonzero() + 1
    return rank


def _finite(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num_(nan=LEAST_LOGPROB, neginf=LEAST_LOGPROB).clamp_(min=LEAST_LOGPROB)


def _likeliest(logits: torch.Tensor, num_top: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids [R, K] of the greatest logits, the lower id first among equals."""
    if logits.device.type != "cpu":
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values[:, :num_top], ids[:, :num_top]
    # A full sort costs milliseconds a row here. topk takes equals in any order: harmless inside, where they are put
    # in order after, but not at its end, where it may have left out a lower id.
    values, ids = logits.topk(min(num_top + 1, logits.shape[1]), dim=-1)
    split = (values[:, num_top - 1] == values[:, -1]).nonzero().flatten() if num_top else ids.new_empty(0)
    ids, order = ids[:, :num_top].sort(dim=-1)
    values, by_value = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, by_value)
    if len(split):
        exact_values, exact_ids = logits[split].sort(dim=-1, descending=True, stable=True)
        values[split], ids[split] = exact_values[:, :num_top], exact_ids[:, :num_top]
    return values, ids
