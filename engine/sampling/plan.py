"""What a batch of lanes needs before its choice, worked out once and kept while its rows stay the same.

Decoding repeats the same rows for many steps, so what depends on rows alone (flat indices of biases and bans, who
reports log-probabilities) is laid out here; per step remain positions, counts of output and token masks. How lanes
choose is laid out by those who choose: `engine.sampling.torch_plan`, `engine.sampling.native_choice`.

Letters: R lanes, V vocabulary, G lanes of one group.
"""

from __future__ import annotations

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
        penalties: Lanes with penalties.
        records: Lanes whose output is written down, those with penalties included.
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
    penalties: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    bias: FlatEntries | None = None
    bans: FlatEntries | None = None
    early_stops: tuple[tuple[int, int, torch.Tensor], ...] = ()
    bad_words: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()
    logprobs: LaneGroup | None = None
    num_top: int = 0

    @property
    def changes_logits(self) -> bool:
        """True if some lane's logits are changed in place by its own parameters."""
        return bool(self.penalties or self.bias or self.bans or self.early_stops or self.bad_words or self.allowed)


def make_plan(state: SamplerState, rows: Sequence[int]) -> BatchPlan:
    """Lays out a batch.

    Args:
        state: Where the rows are.
        rows: One a lane.

    Raises:
        KeyError: A row is not assigned.
    """
    lanes = tuple([state[row] for row in rows])
    key = (state.version, tuple(rows))
    special = [lane for lane, row in enumerate(lanes) if row.is_special]
    if not special:
        return BatchPlan(key=key, lanes=lanes)
    build = _PlanBuilder(state, lanes, special)
    logprobs = build.where(lambda row: row.params.logprobs is not None)
    return BatchPlan(
        key=key,
        lanes=lanes,
        penalties=build.where(lambda row: row.counts_slot is not None),
        records=build.where(lambda row: row.history_slot is not None),
        bias=build.bias(),
        bans=build.bans(),
        early_stops=build.early_stops(),
        bad_words=build.where(lambda row: bool(row.bad_words)),
        allowed=build.where(lambda row: row.allowed is not None),
        logprobs=make_group(logprobs, len(lanes), state.device) if logprobs else None,
        num_top=max((lanes[lane].params.logprobs or 0 for lane in logprobs), default=0),
    )


def make_group(lanes: Sequence[int], num_lanes: int, device: torch.device) -> LaneGroup:
    """Some lanes, at least one, of a batch of `num_lanes`."""
    return LaneGroup(tuple(lanes), upload(lanes, torch.int64, device), len(lanes) == num_lanes)


class _PlanBuilder:
    def __init__(self, state: SamplerState, lanes: tuple[RowState, ...], special: Sequence[int]) -> None:
        self._lanes = lanes
        self._special = special
        self._vocab_size = state.vocab_size
        self._device = state.device

    def where(self, wanted: Callable[[RowState], bool]) -> tuple[int, ...]:
        return tuple([lane for lane in self._special if wanted(self._lanes[lane])])

    def bias(self) -> FlatEntries | None:
        lanes = self.where(lambda row: bool(row.params.logit_bias))
        if not lanes:
            return None
        entries = [(lane, *entry) for lane in lanes for entry in self._lanes[lane].params.logit_bias.items()]
        index = self._ints(lane * self._vocab_size + token_id for lane, token_id, _ in entries)
        values = upload([value for _, _, value in entries], torch.float32, self._device)
        return FlatEntries(index, values)

    def bans(self) -> FlatEntries | None:
        lanes = self.where(lambda row: bool(row.banned_ids))
        if not lanes:
            return None
        return FlatEntries(torch.cat([self._flat(lane, self._lanes[lane].banned_ids) for lane in lanes]))

    def early_stops(self) -> tuple[tuple[int, int, torch.Tensor], ...]:
        lanes = self.where(lambda row: bool(row.early_stop_ids))
        return tuple(
            (lane, self._lanes[lane].params.min_tokens, self._flat(lane, self._lanes[lane].early_stop_ids))
            for lane in lanes
        )

    def _flat(self, lane: int, token_ids: Sequence[int]) -> torch.Tensor:
        return self._ints(lane * self._vocab_size + token_id for token_id in token_ids)

    def _ints(self, values: Iterable[int]) -> torch.Tensor:
        return upload(list(values), torch.int64, self._device)
