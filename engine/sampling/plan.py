"""What a batch of lanes needs, worked out once and kept while its rows stay the same.

Decoding repeats the same rows for many steps, so what depends on rows alone (parameters as tensors, flat indices of
biases and bans, who is greedy) is laid out here; per step remain positions, counts of output and token masks.

Letters: R lanes, V vocabulary, G lanes of one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.sampling.state import RowState, SamplerState, upload


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """Lanes of a batch that are treated alike.

    Attributes:
        lanes: Their numbers in the batch, rising.
        index: The same on the device, [G] int64.
        is_all: They are the whole batch.
    """

    lanes: tuple[int, ...]
    index: torch.Tensor
    is_all: bool

    def rows_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Their rows of a [R, ...] tensor: the tensor itself or a view where they lie together, else a copy."""
        first, last = self.lanes[0], self.lanes[-1]
        if last - first + 1 == len(self.lanes):
            return tensor[first : last + 1]
        return tensor.index_select(0, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawGroup(LaneGroup):
    """Lanes that draw by the same method.

    Attributes:
        stream_keys: [G] int64.
        temperature: [G] float32.
        top_k: [G] int64, V for all.
        top_p: [G] float64, infinite for all.
        min_p: [G] float64.
        rows: Their parameters on the host.
    """

    stream_keys: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    rows: tuple[RowState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyGroup(LaneGroup):
    """Lanes with penalties.

    Attributes:
        counts_slots, history_slots: [G] int64, where counts and history lie.
        history_bases: Places before the output, on the host.
        repetition, presence, frequency: [G, 1] float32.
    """

    counts_slots: torch.Tensor
    history_slots: torch.Tensor
    history_bases: tuple[int, ...]
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGroup(LaneGroup):
    """Lanes whose output is written down.

    Attributes:
        history_slots: [G] int64.
        history_bases: Places before the output, on the host.
    """

    history_slots: torch.Tensor
    history_bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatEntries:
    """Entries of the logits seen as one vector.

    Attributes:
        index: int64, lane * V + token id.
        values: float32 added there, or None.
    """

    index: torch.Tensor
    values: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch's needs; whatever no lane uses is None or empty.

    Attributes:
        key: Rows and version of the state it was made for.
        lanes: Each lane's sequence.
        rows: [R] int64.
        greedy: Lanes that take the likeliest token.
        plain: Lanes that draw from the whole vocabulary.
        top_k: Lanes that draw from few likeliest tokens.
        truncated: Other lanes that draw from a part of the vocabulary.
        penalties: Lanes with penalties.
        record: Lanes whose output is written down.
        bias: Added to logits.
        bans: Always forbidden.
        early_stops: (lane, min_tokens, ids) forbidden before that many tokens.
        bad_words: Lanes with forbidden sequences.
        allowed: Lanes with an own mask.
        logprobs: Lanes that report log-probabilities.
        num_top: Most alternatives a lane reports.
    """

    key: tuple[int, tuple[int, ...]]
    lanes: tuple[RowState, ...]
    rows: torch.Tensor
    greedy: LaneGroup | None
    plain: DrawGroup | None
    top_k: DrawGroup | None
    truncated: DrawGroup | None
    penalties: PenaltyGroup | None
    record: RecordGroup | None
    bias: FlatEntries | None
    bans: FlatEntries | None
    early_stops: tuple[tuple[int, int, torch.Tensor], ...]
    bad_words: tuple[int, ...]
    allowed: tuple[int, ...]
    logprobs: LaneGroup | None
    num_top: int

    @property
    def changes_logits(self) -> bool:
        """True if some lane's logits are changed in place by its own parameters."""
        return bool(self.penalties or self.bias or self.bans or self.early_stops or self.bad_words or self.allowed)


def make_plan(state: SamplerState, rows: Sequence[int], *, max_candidates: int) -> BatchPlan:
    """Lays out a batch.

    Args:
        state: Where the rows are.
        rows: One a lane.
        max_candidates: Lanes with a `top_k` up to this go to `BatchPlan.top_k`; 0 sends none there.

    Raises:
        KeyError: A row is not assigned.
    """
    build = _PlanBuilder(state, tuple(state[row] for row in rows))
    top_p_or_k = build.where(lambda row: not row.is_greedy and _is_truncated(row))
    few = [lane for lane in top_p_or_k if 0 < build.lanes[lane].params.top_k <= max_candidates]
    logprobs = build.where(lambda row: row.params.logprobs is not None)
    return BatchPlan(
        key=(state.version, tuple(rows)),
        lanes=build.lanes,
        rows=upload(rows, torch.int64, state.device),
        greedy=build.group(build.where(lambda row: row.is_greedy)),
        plain=build.draws(build.where(lambda row: not row.is_greedy and not _is_truncated(row))),
        top_k=build.draws(few),
        truncated=build.draws([lane for lane in top_p_or_k if lane not in set(few)]),
        penalties=build.penalties(build.where(lambda row: row.counts_slot is not None)),
        record=build.record(build.where(lambda row: row.history_slot is not None)),
        bias=build.bias(),
        bans=build.bans(),
        early_stops=build.early_stops(),
        bad_words=tuple(build.where(lambda row: bool(row.bad_words))),
        allowed=tuple(build.where(lambda row: row.allowed is not None)),
        logprobs=build.group(logprobs),
        num_top=max((build.lanes[lane].params.logprobs or 0 for lane in logprobs), default=0),
    )


def _is_truncated(row: RowState) -> bool:
    params = row.params
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


class _PlanBuilder:
    def __init__(self, state: SamplerState, lanes: tuple[RowState, ...]) -> None:
        self.lanes = lanes
        self._vocab_size = state.vocab_size
        self._device = state.device

    def where(self, wanted: Callable[[RowState], bool]) -> list[int]:
        return [lane for lane, row in enumerate(self.lanes) if wanted(row)]

    def group(self, lanes: Sequence[int]) -> LaneGroup | None:
        return LaneGroup(*self._placed(lanes)) if lanes else None

    def draws(self, lanes: Sequence[int]) -> DrawGroup | None:
        if not lanes:
            return None
        rows = tuple(self.lanes[lane] for lane in lanes)
        vocab_size = self._vocab_size
        return DrawGroup(
            *self._placed(lanes),
            stream_keys=self._ints(row.stream_key for row in rows),
            temperature=self._floats(row.params.temperature for row in rows),
            top_k=self._ints(min(row.params.top_k or vocab_size, vocab_size) for row in rows),
            top_p=self._floats(
                (row.params.top_p if row.params.top_p < 1.0 else math.inf for row in rows), torch.float64
            ),
            min_p=self._floats((row.params.min_p for row in rows), torch.float64),
            rows=rows,
        )

    def penalties(self, lanes: Sequence[int]) -> PenaltyGroup | None:
        if not lanes:
            return None
        rows = [self.lanes[lane] for lane in lanes]
        return PenaltyGroup(
            *self._placed(lanes),
            counts_slots=self._ints(row.counts_slot or 0 for row in rows),
            history_slots=self._ints(row.history_slot or 0 for row in rows),
            history_bases=tuple(row.history_base for row in rows),
            repetition=self._floats(row.params.repetition_penalty for row in rows)[:, None],
            presence=self._floats(row.params.presence_penalty for row in rows)[:, None],
            frequency=self._floats(row.params.frequency_penalty for row in rows)[:, None],
        )

    def record(self, lanes: Sequence[int]) -> RecordGroup | None:
        if not lanes:
            return None
        rows = [self.lanes[lane] for lane in lanes]
        return RecordGroup(
            *self._placed(lanes),
            history_slots=self._ints(row.history_slot or 0 for row in rows),
            history_bases=tuple(row.history_base for row in rows),
        )

    def bias(self) -> FlatEntries | None:
        lanes = self.where(lambda row: bool(row.params.logit_bias))
        if not lanes:
            return None
        entries = [(lane, *entry) for lane in lanes for entry in self.lanes[lane].params.logit_bias.items()]
        index = self._ints(lane * self._vocab_size + token_id for lane, token_id, _ in entries)
        return FlatEntries(index, self._floats(value for _, _, value in entries))

    def bans(self) -> FlatEntries | None:
        lanes = self.where(lambda row: bool(row.banned_ids))
        if not lanes:
            return None
        return FlatEntries(torch.cat([self._flat(lane, self.lanes[lane].banned_ids) for lane in lanes]))

    def early_stops(self) -> tuple[tuple[int, int, torch.Tensor], ...]:
        lanes = self.where(lambda row: bool(row.early_stop_ids))
        return tuple(
            (lane, self.lanes[lane].params.min_tokens, self._flat(lane, self.lanes[lane].early_stop_ids))
            for lane in lanes
        )

    def _placed(self, lanes: Sequence[int]) -> tuple[tuple[int, ...], torch.Tensor, bool]:
        return tuple(lanes), self._ints(lanes), len(lanes) == len(self.lanes)

    def _flat(self, lane: int, token_ids: Sequence[int]) -> torch.Tensor:
        return self._ints(lane * self._vocab_size + token_id for token_id in token_ids)

    def _ints(self, values: Iterable[int]) -> torch.Tensor:
        return upload(list(values), torch.int64, self._device)

    def _floats(self, values: Iterable[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return upload(list(values), dtype, self._device)
