"""Tokens chosen with torch, on any device: the reference of every other form.

Letters: R lanes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampling.choice import ForcedTokens, SampleLane
from engine.sampling.distribution import Outline, outline
from engine.sampling.draw import TokenDraw, first_argmax
from engine.sampling.logprobs import Logprobs, gather_logprobs
from engine.sampling.masks import LaneMasks
from engine.sampling.plan import BatchPlan, LaneGroup
from engine.sampling.processors import process_logits, sanitize
from engine.sampling.random import position_keys
from engine.sampling.state import COUNT_IN_OUTPUT, SamplerState, upload
from engine.sampling.torch_plan import DrawGroup, RecordGroup, TorchPlan, make_torch_plan
from engine.sampling.truncation import Limits, draw_top_k, draw_within, truncate

_MAX_CANDIDATES = 256


class TorchChoice:
    """Chooses one token a lane; what a batch does not use costs nothing.

    On the CPU tokens are chosen by forms that look before they work, on an accelerator by forms that never wait for
    it.
    """

    look = None

    def __init__(self, state: SamplerState) -> None:
        self._state = state
        self._draw = TokenDraw(state.vocab_size, state.device)
        self._on_cpu = state.device.type == "cpu"
        self._plan: TorchPlan | None = None
        self.changes_logits = not self._on_cpu

    def choose(
        self,
        logits: torch.Tensor,
        plan: BatchPlan,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None,
        forced: ForcedTokens | None = None,
    ) -> torch.Tensor:
        """See `Choice.choose`. Waits for nothing on an accelerator."""
        layout = self._plan_for(plan)
        if forced is not None:
            forced.leave_alone(logits)
        sanitize(logits)
        num_outputs = [lane.num_output for lane in lanes]
        process_logits(logits, layout, self._state, num_outputs, masks)
        token_ids = self._choose(logits, layout, lanes)
        self._remember(token_ids, layout, lanes)
        return token_ids

    def gather_logprobs(self, logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
        """See `engine.sampling.logprobs.gather_logprobs`."""
        return gather_logprobs(logits, targets, num_top)

    def outline(self, logits: torch.Tensor, places: Sequence[int], num_top: int) -> Outline:
        """See `engine.sampling.distribution.outline`."""
        return outline(logits, places, num_top)

    def _plan_for(self, plan: BatchPlan) -> TorchPlan:
        if self._plan is None or self._plan.batch is not plan:
            max_candidates = _MAX_CANDIDATES if self._on_cpu else 0
            self._plan = make_torch_plan(plan, self._state, max_candidates=max_candidates)
        return self._plan

    def _choose(self, logits: torch.Tensor, plan: TorchPlan, lanes: Sequence[SampleLane]) -> torch.Tensor:
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

    def _remember(self, token_ids: torch.Tensor, plan: TorchPlan, lanes: Sequence[SampleLane]) -> None:
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


def _limits(group: DrawGroup) -> Limits:
    return Limits(group.temperature, group.top_k, group.top_p, group.min_p)


def _put(tokens: torch.Tensor, group: LaneGroup, chosen: torch.Tensor) -> None:
    if group.is_all:
        tokens.copy_(chosen)
    else:
        tokens.index_copy_(0, group.index, chosen)
