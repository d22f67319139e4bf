"""What torch needs to choose tokens for a batch: parameters as tensors, lanes grouped by how they choose.

Letters: R lanes, V vocabulary, G lanes of one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.sampling.plan import BatchPlan, LaneGroup, make_group
from engine.sampling.state import RowState, SamplerState, upload


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPlan:
    """How the lanes of a batch choose; what no lane uses is None.

    Attributes:
        batch: The batch.
        rows: [R] int64, the lanes' rows of the state.
        greedy: Lanes that take the likeliest token.
        plain: Lanes that draw from the whole vocabulary.
        top_k: Lanes that draw from few likeliest tokens.
        truncated: Other lanes that draw from a part of the vocabulary.
        penalties: Lanes with penalties.
        record: Lanes whose output is written down.
    """

    batch: BatchPlan
    rows: torch.Tensor
    greedy: LaneGroup | None
    plain: DrawGroup | None
    top_k: DrawGroup | None
    truncated: DrawGroup | None
    penalties: PenaltyGroup | None
    record: RecordGroup | None


def make_torch_plan(batch: BatchPlan, state: SamplerState, *, max_candidates: int) -> TorchPlan:
    """Lays out how a batch chooses.

    Args:
        batch: The batch.
        state: Where its rows are.
        max_candidates: Lanes with a `top_k` up to this go to `TorchPlan.top_k`; 0 sends none there.
    """
    build = _Builder(batch, state)
    numbered = list(enumerate(batch.lanes))
    greedy = [lane for lane, row in numbered if row.is_greedy]
    plain = [lane for lane, row in numbered if not row.is_greedy and not row.is_truncated]
    part = [lane for lane, row in numbered if not row.is_greedy and row.is_truncated]
    few = [lane for lane in part if 0 < batch.lanes[lane].params.top_k <= max_candidates]
    return TorchPlan(
        batch=batch,
        rows=upload(batch.key[1], torch.int64, state.device),
        greedy=make_group(greedy, len(batch.lanes), state.device) if greedy else None,
        plain=build.draws(plain),
        top_k=build.draws(few),
        truncated=build.draws([lane for lane in part if lane not in set(few)]),
        penalties=build.penalties(batch.penalties),
        record=build.record(batch.records),
    )


class _Builder:
    def __init__(self, batch: BatchPlan, state: SamplerState) -> None:
        self._lanes = batch.lanes
        self._vocab_size = state.vocab_size
        self._device = state.device

    def draws(self, lanes: Sequence[int]) -> DrawGroup | None:
        if not lanes:
            return None
        rows = tuple(self._lanes[lane] for lane in lanes)
        vocab_size = self._vocab_size
        return DrawGroup(
            *self._placed(lanes),
            stream_keys=self._ints(row.stream_key for row in rows),
            temperature=self._floats(row.params.temperature for row in rows),
            top_k=self._ints(row.num_kept(vocab_size) for row in rows),
            top_p=self._floats((row.kept_mass for row in rows), torch.float64),
            min_p=self._floats((row.params.min_p for row in rows), torch.float64),
            rows=rows,
        )

    def penalties(self, lanes: Sequence[int]) -> PenaltyGroup | None:
        if not lanes:
            return None
        rows = [self._lanes[lane] for lane in lanes]
        return PenaltyGroup(
            *self._placed(lanes),
            counts_slots=self._ints(row.counts_slot or 0 for row in rows),
            history_slots=self._ints(row.history_slot or 0 for row in rows),
            history_bases=tuple(row.history_base for row in rows),
            repetition=self._floats(row.repetition for row in rows)[:, None],
            presence=self._floats(row.params.presence_penalty for row in rows)[:, None],
            frequency=self._floats(row.params.frequency_penalty for row in rows)[:, None],
        )

    def record(self, lanes: Sequence[int]) -> RecordGroup | None:
        if not lanes:
            return None
        rows = [self._lanes[lane] for lane in lanes]
        return RecordGroup(
            *self._placed(lanes),
            history_slots=self._ints(row.history_slot or 0 for row in rows),
            history_bases=tuple(row.history_base for row in rows),
        )

    def _placed(self, lanes: Sequence[int]) -> tuple[tuple[int, ...], torch.Tensor, bool]:
        return tuple(lanes), self._ints(lanes), len(lanes) == len(self._lanes)

    def _ints(self, values: Iterable[int]) -> torch.Tensor:
        return upload(list(values), torch.int64, self._device)

    def _floats(self, values: Iterable[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return upload(list(values), dtype, self._device)
