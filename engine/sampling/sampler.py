"""From logits to tokens, on the device.

Letters: R lanes, V vocabulary, K alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.sampling.draw import TokenDraw, first_argmax
from engine.sampling.logprobs import Logprobs, gather_logprobs
from engine.sampling.plan import BatchPlan, DrawGroup, LaneGroup, RecordGroup, make_plan
from engine.sampling.processors import process_logits, sanitize
from engine.sampling.random import position_keys
from engine.sampling.state import COUNT_IN_OUTPUT, SamplerState, upload
from engine.sampling.truncation import Limits, draw_top_k, draw_within, truncate

__all__ = ["Logprobs", "SampleLane", "SampledTokens", "Sampler", "gather_logprobs"]

_MAX_CANDIDATES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLane:
    """One row of a step that wants a token.

    Attributes:
        row: Its row in `SamplerState`.
        position: Index of the token about to be drawn: tokens in the sequence before it.
        num_output: Output tokens drawn before this one.
        token_mask: [ceil(V / 32)] int32, bit i of word w allows token 32 * w + i (as llguidance and xgrammar lay it
            out); None allows all.
    """

    row: int
    position: int
    num_output: int
    token_mask: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One step's tokens, on the device.

    Attributes:
        token_ids: [R] int64.
        logprobs: Set when any lane asked: [R] and [R, K] with K the most any lane asked for; zeros in lanes that did
            not ask.
    """

    token_ids: torch.Tensor
    logprobs: Logprobs | None


class Sampler:
    """Chooses one token a lane; what a batch does not use costs nothing.

    On the CPU tokens are chosen by forms that look before they work, on an accelerator by forms that never wait for
    it; both choose the same tokens, up to the last bit of a logarithm.
    """

    def __init__(self, state: SamplerState) -> None:
        self._state = state
        self._draw = TokenDraw(state.vocab_size, state.device)
        self._on_cpu = state.device.type == "cpu"
        self._plan: BatchPlan | None = None

    def sample(self, logits: torch.Tensor, lanes: Sequence[SampleLane]) -> SampledTokens:
        """Chooses tokens and remembers them (`last_tokens`, counts, history). Waits for nothing on an accelerator.

        Args:
            logits: [R, V] float32 on the state's device; may be changed. NaN counts as -inf.
            lanes: One a row of `logits`, no row of the state twice.

        Raises:
            ValueError: Shapes or dtype do not fit.
            KeyError: A lane's row is not assigned.
        """
        self._check(logits, lanes)
        plan = self._plan_for([lane.row for lane in lanes])
        logits = logits.contiguous()
        sanitize(logits)
        own_logits = self._keep_for_logprobs(logits, plan, lanes)
        num_outputs = [lane.num_output for lane in lanes]
        process_logits(logits, plan, self._state, num_outputs, [lane.token_mask for lane in lanes])
        token_ids = self._choose(logits, plan, lanes)
        self._remember(token_ids, plan, lanes)
        return SampledTokens(token_ids, self._report(own_logits, token_ids, plan))

    def _check(self, logits: torch.Tensor, lanes: Sequence[SampleLane]) -> None:
        shape = (len(lanes), self._state.vocab_size)
        if tuple(logits.shape) != shape or logits.dtype != torch.float32:
            raise ValueError(f"logits must be float32 {list(shape)}, got {logits.dtype} {list(logits.shape)}")
        num_words = -(-self._state.vocab_size // 32)
        for lane in lanes:
            mask = lane.token_mask
            if mask is not None and (tuple(mask.shape) != (num_words,) or mask.dtype != torch.int32):
                raise ValueError(f"token_mask must be int32 [{num_words}], got {mask.dtype} {list(mask.shape)}")

    def _plan_for(self, rows: list[int]) -> BatchPlan:
        key = (self._state.version, tuple(rows))
        if self._plan is None or self._plan.key != key:
            self._plan = make_plan(self._state, rows, max_candidates=_MAX_CANDIDATES if self._on_cpu else 0)
        return self._plan

    def _keep_for_logprobs(
        self, logits: torch.Tensor, plan: BatchPlan, lanes: Sequence[SampleLane]
    ) -> torch.Tensor | None:
        """The model's own logits of lanes that report log-probabilities, copied only where they will be changed."""
        if plan.logprobs is None:
            return None
        rows = plan.logprobs.rows_of(logits)
        changed = plan.changes_logits or not self._on_cpu or any(lane.token_mask is not None for lane in lanes)
        return rows.clone() if changed else rows

    def _choose(self, logits: torch.Tensor, plan: BatchPlan, lanes: Sequence[SampleLane]) -> torch.Tensor:
        tokens = torch.empty(len(lanes), dtype=torch.int64, device=self._state.device)
        if plan.greedy is not None:
            _put(tokens, plan.greedy, first_argmax(plan.greedy.rows_of(logits)))
        if plan.plain is not None:
            rows = plan.plain.rows_of(logits)
            _put(tokens, plan.plain, self._draw.draw(rows, plan.plain.temperature, self._keys(plan.plain, lanes)))
        if plan.top_k is not None:
            _put(tokens, plan.top_k, self._draw_few(logits, plan.top_k, lanes))
        if plan.truncated is not None:
            _put(tokens, plan.truncated, self._draw_part(logits, plan.truncated, lanes))
        return tokens

    def _draw_few(self, logits: torch.Tensor, group: DrawGroup, lanes: Sequence[SampleLane]) -> torch.Tensor:
        rows, limits, keys = group.rows_of(logits), _limits(group), self._keys(group, lanes)
        params = [row.params for row in group.rows]
        tokens, split = draw_top_k(self._draw, rows, limits, keys, max(one.top_k for one in params))
        for lane in split:
            this = slice(lane, lane + 1)
            tokens[this] = draw_within(self._draw, rows[this], limits[this], keys[this], params[this])
        return tokens

    def _draw_part(self, logits: torch.Tensor, group: DrawGroup, lanes: Sequence[SampleLane]) -> torch.Tensor:
        rows, limits, keys = group.rows_of(logits), _limits(group), self._keys(group, lanes)
        if self._on_cpu:
            return draw_within(self._draw, rows, limits, keys, [row.params for row in group.rows])
        truncate(rows, limits)
        return self._draw.draw(rows, group.temperature, keys)

    def _keys(self, group: DrawGroup, lanes: Sequence[SampleLane]) -> torch.Tensor:
        positions = upload([lanes[lane].position for lane in group.lanes], torch.int64, self._state.device)
        return position_keys(group.stream_keys, positions)

    def _remember(self, token_ids: torch.Tensor, plan: BatchPlan, lanes: Sequence[SampleLane]) -> None:
        state = self._state
        state.last_tokens.index_copy_(0, plan.rows, token_ids)
        if plan.penalties is not None:
            index = plan.penalties.counts_slots * state.vocab_size + plan.penalties.rows_of(token_ids)
            state.counts.rows.view(-1)[index] += COUNT_IN_OUTPUT
        if plan.record is not None:
            self._write_down(plan.record.rows_of(token_ids), plan.record, lanes)

    def _write_down(self, token_ids: torch.Tensor, group: RecordGroup, lanes: Sequence[SampleLane]) -> None:
        bases = zip(group.history_bases, group.lanes, strict=True)
        places = [base + lanes[lane].num_output for base, lane in bases]
        history = self._state.history
        history.ensure_width(max(places) + 1)
        history.rows[group.history_slots, upload(places, torch.int64, self._state.device)] = token_ids

    def _report(self, own_logits: torch.Tensor | None, token_ids: torch.Tensor, plan: BatchPlan) -> Logprobs | None:
        group = plan.logprobs
        if group is None or own_logits is None:
            return None
        found = gather_logprobs(own_logits, group.rows_of(token_ids), plan.num_top)
        return found if group.is_all else _spread(found, group, len(token_ids))


def _limits(group: DrawGroup) -> Limits:
    return Limits(group.temperature, group.top_k, group.top_p, group.min_p)


def _put(tokens: torch.Tensor, group: LaneGroup, chosen: torch.Tensor) -> None:
    if group.is_all:
        tokens.copy_(chosen)
    else:
        tokens.index_copy_(0, group.index, chosen)


def _spread(found: Logprobs, group: LaneGroup, num_lanes: int) -> Logprobs:
    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros((num_lanes, *values.shape[1:])).index_copy_(0, group.index, values)

    return Logprobs(spread(found.chosen), spread(found.rank), spread(found.top_ids), spread(found.top_logprobs))
