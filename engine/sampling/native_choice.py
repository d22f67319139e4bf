"""Tokens chosen in C++, on the CPU: one call a step, and one more where logits are changed before.

Letters: R lanes, V vocabulary, W words of a bit mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.native.sampling import LANE, NO_MASKS, Ints, Lanes, Longs, Memory, NativeSampling
from engine.sampling.choice import ForcedTokens, SampleLane
from engine.sampling.distribution import Outline
from engine.sampling.logprobs import Logprobs
from engine.sampling.masks import LaneMasks
from engine.sampling.plan import BatchPlan
from engine.sampling.processors import bias_and_ban, combine_masks
from engine.sampling.state import RowState, SamplerState

_NO_COUNTS = np.empty(0, np.int32)
_NO_HISTORY = np.empty((0, 1), np.int64)


class NativeChoice:
    """Chooses what `TorchChoice` chooses, without a torch operation where no lane changes its logits.

    Args:
        state: On the CPU.
        native: Compiled functions for its vocabulary.
    """

    changes_logits = False
    look = None

    def __init__(self, state: SamplerState, native: NativeSampling) -> None:
        self._state = state
        self._native = native
        self._last_tokens = state.last_tokens.numpy()
        self._plan: BatchPlan | None = None
        self._lanes: Lanes = np.empty(0, LANE)

    def choose(
        self,
        logits: torch.Tensor,
        plan: BatchPlan,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None,
        forced: ForcedTokens | None = None,
    ) -> torch.Tensor:
        """See `Choice.choose`."""
        table = self._table(plan)
        num_outputs = [lane.num_output for lane in lanes]
        table["position"] = [lane.position for lane in lanes]
        table["mask"] = -1
        if plan.records:
            table["num_output"] = num_outputs
        memory = self._memory(plan, num_outputs)
        values = logits.numpy()
        if plan.changes_logits:
            self._native.edit_logits(values, table, memory)
            bias_and_ban(logits, plan, self._state, num_outputs)
        words = self._place_masks(plan, table, masks)
        given = None if forced is None else _given(forced, len(lanes))
        return torch.from_numpy(self._native.choose_tokens(values, table, words, memory, given))

    def gather_logprobs(self, logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
        """See `engine.sampling.logprobs.gather_logprobs`."""
        num_top = min(num_top, logits.shape[1])
        found = self._native.report_logprobs(logits.contiguous().numpy(), targets.contiguous().numpy(), num_top)
        return Logprobs(*(torch.from_numpy(array) for array in found))

    def outline(self, logits: torch.Tensor, places: Sequence[int], num_top: int) -> Outline:
        """See `engine.sampling.distribution.outline`. One call, which copies nothing."""
        rows = np.array(places, np.int64)
        return Outline(*self._native.outline_rows(logits.contiguous().numpy(), rows, num_top))

    def _table(self, plan: BatchPlan) -> Lanes:
        if plan is not self._plan:
            rows = zip(plan.key[1], plan.lanes, strict=True)
            vocab_size = self._state.vocab_size
            self._lanes = np.array([_parameters(row, state, vocab_size) for row, state in rows], LANE)
            self._plan = plan
        return self._lanes

    def _memory(self, plan: BatchPlan, num_outputs: Sequence[int]) -> Memory:
        if not plan.records:
            return Memory(self._last_tokens, _NO_COUNTS, _NO_HISTORY)
        history = self._state.history
        history.ensure_width(max(plan.lanes[lane].history_base + num_outputs[lane] for lane in plan.records) + 1)
        return Memory(self._last_tokens, self._state.counts.rows.numpy(), history.rows.numpy())

    def _place_masks(self, plan: BatchPlan, table: Lanes, masks: LaneMasks | None) -> Ints:
        """Masks of the lanes that have one, [*, W], and their places in the table."""
        if plan.allowed:
            lanes, words = combine_masks(plan, masks, self._state.device)
            table["mask"][lanes] = range(len(lanes))
            return words.numpy()
        if masks is None:
            return NO_MASKS
        table["mask"][masks.lanes] = range(len(masks.lanes))
        return masks.words


def _given(forced: ForcedTokens, num_lanes: int) -> Longs:
    """[R], the tokens that are there already, else -1."""
    token_ids = np.full(num_lanes, -1, np.int64)
    token_ids[forced.places.numpy()] = np.maximum(forced.token_ids.numpy(), 0)
    return token_ids


def _parameters(row: int, state: RowState, vocab_size: int) -> tuple[int | float, ...]:
    """One entry of `LANE`."""
    params = state.params
    return (
        *(state.stream_key, 0, row, 0),
        state.num_kept(vocab_size),
        -1 if state.counts_slot is None else state.counts_slot,
        -1 if state.history_slot is None else state.history_slot,
        state.history_base,
        *(state.kept_mass, params.min_p, params.temperature),
        *(state.repetition, params.presence_penalty, params.frequency_penalty),
        *(state.is_greedy, -1),
    )
