"""What changes logits before a token is chosen: penalties, biases, forbidden tokens, masks; all in place.

A token that parameters forbid gets `BANNED`, one that a mask excludes gets -inf: where nothing else is left, a
forbidden token inside the mask is chosen rather than one outside.

Letters: R lanes, V vocabulary, W words of a bit mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from engine.sampling.masks import LaneMasks
from engine.sampling.plan import BatchPlan, FlatEntries
from engine.sampling.state import BadWord, RowState, SamplerState, upload
from engine.sampling.torch_plan import PenaltyGroup, TorchPlan

BANNED = -1e9
"""Far below any logit, yet finite after every later step."""


def sanitize(logits: torch.Tensor) -> None:
    """Makes what a broken model may return harmless, in place: NaN counts as -inf, +inf as a large number.

    Args:
        logits: float32. The CPU looks first and writes only if it must; an accelerator writes without looking.
    """
    if logits.device.type == "cpu" and (logits.numel() == 0 or math.isfinite(logits.amax().item())):
        return
    torch.nan_to_num_(logits, nan=-math.inf, posinf=-BANNED, neginf=-math.inf)


def process_logits(
    logits: torch.Tensor,
    plan: TorchPlan,
    state: SamplerState,
    num_outputs: Sequence[int],
    masks: LaneMasks | None,
) -> None:
    """Applies everything that comes before the choice, in the order that `SamplingParams` states.

    Args:
        logits: [R, V] float32, contiguous, without NaN, changed.
        plan: What the lanes use.
        state: Their rows.
        num_outputs: Output tokens of each lane.
        masks: Of some lanes.
    """
    if plan.penalties is not None:
        apply_penalties(logits, plan.penalties, state, num_outputs)
    bias_and_ban(logits, plan.batch, state, num_outputs)
    if masks is not None or plan.batch.allowed:
        exclude_by_masks(logits, *combine_masks(plan.batch, masks, logits.device))


def bias_and_ban(logits: torch.Tensor, plan: BatchPlan, state: SamplerState, num_outputs: Sequence[int]) -> None:
    """Applies `logit_bias`, then forbids tokens: what comes between penalties and masks.

    Args:
        logits: [R, V] float32, contiguous, without NaN, changed.
        plan: What the lanes use.
        state: Their rows.
        num_outputs: Output tokens of each lane.
    """
    if plan.bias is not None:
        add_bias(logits, plan.bias)
    if plan.bans is not None:
        ban(logits, plan.bans.index)
    if plan.early_stops:
        ban_early_stops(logits, plan, num_outputs)
    for lane in plan.bad_words:
        ban_bad_words(logits[lane], plan.lanes[lane], state, num_outputs[lane])


def apply_penalties(logits: torch.Tensor, group: PenaltyGroup, state: SamplerState, num_outputs: Sequence[int]) -> None:
    """Repetition penalty (arXiv 1909.05858), then presence and frequency penalties.

    Only tokens of the history are touched. Each gets a value that depends on its count alone, so neither a token that
    the history holds twice nor a place not yet written needs care.

    Args:
        logits: [R, V] float32, contiguous, changed.
        group: Who has penalties.
        state: Counts and history.
        num_outputs: Output tokens of each lane of the batch.
    """
    places = zip(group.history_bases, group.lanes, strict=True)
    length = max(base + num_outputs[lane] for base, lane in places)
    if length == 0:
        return
    ids = state.history.rows[group.history_slots, :length]
    counts = state.counts.rows.view(-1)[ids + group.counts_slots[:, None] * state.vocab_size]
    index = ids + group.index[:, None] * state.vocab_size
    values = logits.view(-1)[index]
    repeated = torch.where(values > 0, values / group.repetition, values * group.repetition).clamp_max_(-BANNED)
    values = torch.where(counts > 0, repeated, values)
    in_output = counts >> 1
    values = values - in_output * group.frequency - (in_output > 0) * group.presence
    logits.view(-1)[index] = values


def add_bias(logits: torch.Tensor, entries: FlatEntries) -> None:
    """Adds values to single logits [R, V]; no entry occurs twice."""
    if entries.values is not None:
        logits.view(-1).index_add_(0, entries.index, entries.values)


def ban(logits: torch.Tensor, index: torch.Tensor) -> None:
    """Forbids tokens, given as lane * V + token id."""
    logits.view(-1).index_fill_(0, index, BANNED)


def ban_early_stops(logits: torch.Tensor, plan: BatchPlan, num_outputs: Sequence[int]) -> None:
    """Forbids end and stop ids in lanes that have not reached their `min_tokens`."""
    early = [index for lane, min_tokens, index in plan.early_stops if num_outputs[lane] < min_tokens]
    if early:
        ban(logits, torch.cat(early))


def ban_bad_words(row: torch.Tensor, lane: RowState, state: SamplerState, num_output: int) -> None:
    """Forbids the last token of every word whose other tokens end the output so far.

    Args:
        row: [V] float32, the lane's logits, changed.
        lane: Whose words.
        state: Holds the output, on the device.
        num_output: Its length.
    """
    assert lane.history_slot is not None
    end = lane.history_base + num_output
    history = state.history.rows[lane.history_slot]
    for word in lane.bad_words:
        length = len(word.prefix)
        if length <= num_output:
            _ban_if_ends(row, history[end - length : end], word)


def _ban_if_ends(row: torch.Tensor, tail: torch.Tensor, word: BadWord) -> None:
    target = row[word.last]
    target.copy_(torch.where((tail == word.prefix).all(), BANNED, target))


def combine_masks(plan: BatchPlan, masks: LaneMasks | None, device: torch.device) -> tuple[list[int], torch.Tensor]:
    """Lanes that may not draw any token, and [*, W] int32 of what their own parameters and masks of this step allow."""
    allowed: dict[int, torch.Tensor] = {}
    if masks is not None:
        words = torch.from_numpy(masks.words).to(device, non_blocking=True)
        if not plan.allowed:
            return masks.lanes, words
        allowed.update(zip(masks.lanes, words, strict=True))
    for lane in plan.allowed:
        own = plan.lanes[lane].allowed
        assert own is not None
        allowed[lane] = allowed[lane] & own if lane in allowed else own
    return list(allowed), torch.stack(list(allowed.values()))


def exclude_by_masks(logits: torch.Tensor, lanes: list[int], words: torch.Tensor) -> None:
    """Excludes tokens whose bit is 0.

    Args:
        logits: [R, V] float32, changed in the lanes that have a mask. What stays there is at least `BANNED`, so an
            allowed token beats an excluded one even where the model gave it -inf.
        lanes: Those, at least one.
        words: [len(lanes), W] int32 on the same device, bit i of word w stands for token 32 * w + i.
    """
    device = logits.device
    excluded = _excluded_of_byte(device)[words.view(torch.uint8).long()].view(torch.bool)[:, : logits.shape[1]]
    if lanes == list(range(lanes[0], lanes[0] + len(lanes))):
        logits[lanes[0] : lanes[-1] + 1].clamp_min_(BANNED).masked_fill_(excluded, -math.inf)
    else:
        index = upload(lanes, torch.int64, device)
        rows = logits.index_select(0, index).clamp_min_(BANNED).masked_fill_(excluded, -math.inf)
        logits.index_copy_(0, index, rows)


@functools.cache
def _excluded_of_byte(device: torch.device) -> torch.Tensor:
    """[256] int64: for each byte of a mask, eight bytes that say whether its bits exclude."""
    bits = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)
    return (bits & 1 == 0).view(torch.int64).flatten()
