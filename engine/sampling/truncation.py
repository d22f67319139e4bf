"""Draws from a part of the vocabulary: top_k, then top_p of what that leaves, then min_p.

Nucleus sampling (top_p): arXiv 1904.09751; min_p: arXiv 2407.01082.

Tokens stand in order of falling probability, the lower id first among equals; every rule keeps a beginning of that
order. A draw from a part is the best scored token of that part: the same noise, fewer contestants.

Letters: R lanes, V vocabulary, K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.sampling.draw import TokenDraw
from engine.sampling.params import SamplingParams

_CHUNK_ELEMENTS = 2**24
_MARGIN = 1e-5  # more than the rounding of a sum of probabilities


@dataclass(frozen=True, slots=True)
class Limits:
    """What lanes keep.

    Attributes:
        temperature: [R] float32.
        top_k: [R] int64, 1..V.
        top_p: [R] float64, positive, infinite for all.
        min_p: [R] float64.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def __getitem__(self, lanes: slice) -> Limits:
        return Limits(self.temperature[lanes], self.top_k[lanes], self.top_p[lanes], self.min_p[lanes])


def truncate(logits: torch.Tensor, limits: Limits) -> None:
    """Excludes what the lanes do not keep, by sorting. Waits for nothing.

    Args:
        logits: [R, V] float32, changed.
        limits: One a lane.
    """
    rows = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    ids = torch.arange(logits.shape[1], device=logits.device)
    for start in range(0, len(logits), rows):
        part = logits[start : start + rows]
        values, order = part.sort(dim=-1, descending=True, stable=True)
        last = _num_kept(values, limits[start : start + rows]) - 1
        last_value, last_id = values.gather(1, last), order.gather(1, last)
        part.masked_fill_((part < last_value) | ((part == last_value) & (ids > last_id)), -math.inf)


def draw_top_k(
    draw: TokenDraw, logits: torch.Tensor, limits: Limits, keys: torch.Tensor, most: int
) -> tuple[torch.Tensor, list[int]]:
    """Draws for lanes with a small `top_k` without looking at the rest of the vocabulary; for the CPU.

    Args:
        draw: Scores tokens.
        logits: [R, V] float32.
        limits: One a lane.
        keys: [R, 2] int32.
        most: Greatest `top_k` of the lanes.

    Returns:
        [R] int64, and the lanes whose last kept token has an equal among those left out: `topk` takes equals in any
        order, so these want `draw_within`.
    """
    num_candidates = min(most + 1, logits.shape[1])
    values, ids = logits.topk(num_candidates, dim=-1)
    kept = _num_kept(values, limits)
    last, after = values.gather(1, kept - 1), values.gather(1, kept.clamp_max(num_candidates - 1))
    matters = (last > -math.inf) | (values[:, :1] == -math.inf)
    split = (kept < num_candidates) & (last == after) & matters
    scores = draw.score(values, ids, limits.temperature[:, None], keys)
    scores.masked_fill_(torch.arange(num_candidates) >= kept, -math.inf)
    best = scores.amax(dim=-1, keepdim=True)
    tokens = torch.where(scores == best, ids, logits.shape[1]).amin(dim=-1)
    return tokens, split.flatten().nonzero().flatten().tolist()


def draw_within(
    draw: TokenDraw, logits: torch.Tensor, limits: Limits, keys: torch.Tensor, params: Sequence[SamplingParams]
) -> torch.Tensor:
    """Draws for any lanes without sorting; for the CPU.

    Draws from the whole vocabulary and looks if the token is in the part. If not, neither is any token after it: they
    are dropped, and the draw repeated over the rest, which ends in the part's best scored token.

    Args:
        draw: Draws.
        logits: [R, V] float32.
        limits: One a lane.
        keys: [R, 2] int32.
        params: The same limits on the host.

    Returns:
        [R] int64.
    """
    tokens = draw.draw(logits, limits.temperature, keys)
    for part in draw.parts(len(logits)):
        kept = _surely_kept(
            logits[part], tokens[part], limits[part], params[part], draw.scratch(part.stop - part.start)
        )
        for lane in (part.start + (~kept).nonzero().flatten()).tolist():
            this = slice(lane, lane + 1)
            tokens[lane] = _settle(draw, logits[lane], int(tokens[lane]), limits[this], keys[this], params[lane])
    return tokens


def _num_kept(values: torch.Tensor, limits: Limits) -> torch.Tensor:
    """How many of each lane's likeliest tokens stay.

    Args:
        values: [R, K] float32, logits in falling order, the V or at least `top_k` greatest.

    Returns:
        [R, 1] int64, at least 1.
    """
    ratio = (values - values[:, :1]).div_(limits.temperature[:, None]).exp_()  # to the likeliest token
    in_top_k = torch.arange(values.shape[1], device=values.device) < limits.top_k[:, None]
    mass = (ratio * in_top_k).cumsum(dim=-1, dtype=torch.float64)
    missing = mass - ratio < limits.top_p[:, None] * mass[:, -1:]
    likely = ratio >= limits.min_p[:, None]
    return (in_top_k & missing & likely).sum(dim=-1, keepdim=True).clamp_min_(1)


def _surely_kept(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    limits: Limits,
    params: Sequence[SamplingParams],
    scratch: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Which tokens [R] bool are in their part whatever rounding and equals do: nearly all, in few passes.

    What is left over is settled lane by lane, so that no choice hangs on how a batch's sums are rounded.
    """
    temperature = limits.temperature[:, None]
    values = logits.gather(1, tokens[:, None])
    kept = torch.ones_like(tokens, dtype=torch.bool)
    if any(one.min_p > 0.0 for one in params):
        lead = (values - logits.amax(dim=-1, keepdim=True)).div_(temperature).squeeze(1)
        kept &= lead >= limits.min_p.log() + _MARGIN
    if all(one.top_k == 0 and one.top_p == 1.0 for one in params):
        return kept
    not_after, probs = scratch
    has_top_p = any(one.top_p < 1.0 for one in params)
    if has_top_p:
        torch.softmax(torch.sub(logits, _greatest(logits), out=not_after).div_(temperature), dim=-1, out=probs)
    torch.ge(logits, values, out=not_after)
    kept &= not_after.sum(dim=-1) <= limits.top_k
    if has_top_p:
        before = not_after.mul_(probs).sum(dim=-1) - probs.gather(1, tokens[:, None]).squeeze(1)
        # With top_k, mass counts within the top_k: unknown here.
        kept &= limits.top_p.isinf() | ((before < limits.top_p - _MARGIN) & (limits.top_k == logits.shape[1]))
    return kept


def _settle(
    draw: TokenDraw, row: torch.Tensor, token: int, limits: Limits, keys: torch.Tensor, params: SamplingParams
) -> int:
    """Draws again and again, each time from what comes before the last token, until one is kept."""
    probs = ((row - _greatest(row)) / limits.temperature).softmax(dim=-1) if params.top_p < 1.0 else None
    while (before := _before_if_dropped(row, probs, token, params)) is not None:
        rest = torch.where(before, row, -math.inf)
        token = int(draw.draw(rest[None], limits.temperature, keys))
    return token


def _greatest(logits: torch.Tensor) -> torch.Tensor:
    """[..., 1], finite. Taken from large logits before they are divided: rounding would make equals of them."""
    return logits.amax(dim=-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)


def _before_if_dropped(
    row: torch.Tensor, probs: torch.Tensor | None, token: int, params: SamplingParams
) -> torch.Tensor | None:
    """Which tokens [V] come before one that is not kept, at least one; None if it is kept."""
    value = row[token]
    before = row > value
    torch.ge(row[:token], value, out=before[:token])
    num_before = int(before.count_nonzero())
    if num_before == 0:
        return None
    if 0 < params.top_k <= num_before:
        return before
    if probs is not None:
        total = probs.topk(params.top_k).values.sum() if 0 < params.top_k < len(row) else 1.0
        if (probs * before).sum() >= params.top_p * total:
            return before
    if params.min_p > 0.0:
        ratio = math.exp((value.item() - row.amax().item()) / params.temperature)
        if ratio < params.min_p:
            return before
    return None
