"""From logits to tokens, on the device.

Letters: R lanes, V vocabulary, K alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.cuda.status import cuda_status
from engine.native.sampling import find_native_sampling
from engine.request import Distribution, Readout
from engine.sampling.choice import Choice, ForcedTokens, SampleLane
from engine.sampling.distribution import Outline, describe
from engine.sampling.logprobs import Logprobs, gather_logprobs
from engine.sampling.looks import WrittenLooks, can_be_written
from engine.sampling.masks import LaneMasks
from engine.sampling.native_choice import NativeChoice
from engine.sampling.plan import BatchPlan, LaneGroup, make_plan
from engine.sampling.processors import process_logits, sanitize
from engine.sampling.state import SamplerState
from engine.sampling.torch_choice import TorchChoice
from engine.sampling.torch_plan import make_torch_plan

__all__ = [
    "TORCH",
    "ForcedTokens",
    "LaneMasks",
    "Logprobs",
    "SampleLane",
    "SampledTokens",
    "Sampler",
    "gather_logprobs",
]

TORCH = "torch"
"""Form of a `Sampler` that uses neither native code nor kernels."""


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

    Tokens are chosen by native code on a CPU where that was built, by kernels on a GPU where Triton is installed, else
    with torch; all choose the same tokens, up to the last bit of a logarithm.

    Args:
        state: Rows of the sequences it chooses for.
        team: Threads that native code spreads rows over; None works in the caller's thread.
        form: `TORCH`, or one of the native forms, instead of the best there is.

    Raises:
        ModelLoadError: `WYE_NATIVE_FORM` names no form of this processor.
    """

    def __init__(self, state: SamplerState, *, team: object | None = None, form: str | None = None) -> None:
        self._state = state
        self._choice = _choice_of(state, team, form)
        self._num_words = -(-state.vocab_size // 32)
        self._plan: BatchPlan | None = None

    def sample(
        self,
        logits: torch.Tensor,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None = None,
        forced: ForcedTokens | None = None,
    ) -> SampledTokens:
        """Chooses tokens and remembers them (`last_tokens`, counts, history). Waits for nothing on an accelerator.

        Args:
            logits: [R, V] float32 on the state's device; may be changed. NaN counts as -inf.
            lanes: One a row of `logits`, no row of the state twice.
            masks: What some of them may draw; None if all may draw anything.
            forced: What some lanes get whatever their logits are.

        Raises:
            ValueError: Shapes or dtype do not fit.
            KeyError: A lane's row is not assigned.
        """
        self._check(logits, lanes, masks)
        plan = self._plan_for(lanes)
        logits = logits.contiguous()
        own_logits = self._keep_for_logprobs(logits, plan, is_changed=masks is not None or forced is not None)
        token_ids = self._choice.choose(logits, plan, lanes, masks, forced)
        reported = self._report(own_logits, token_ids, plan)
        return SampledTokens(token_ids if forced is None else forced.written_to(token_ids), reported)

    def process(
        self, logits: torch.Tensor, lanes: Sequence[SampleLane], masks: LaneMasks | None, places: Sequence[int]
    ) -> torch.Tensor:
        """Logits of some lanes after all that comes before a draw: penalties, biases, bans and masks.

        Args:
            logits: [R, V] float32 on the state's device, not changed.
            lanes: One a row of `logits`.
            masks: What some of them may draw; None if all may draw anything.
            places: Of the lanes wanted.

        Returns:
            [len(places), V] float32; -inf where a token must not come.
        """
        some = [lanes[place] for place in places]
        plan = make_plan(self._state, [lane.row for lane in some])
        values = logits.clone() if len(places) == len(logits) else logits[list(places)].contiguous()
        sanitize(values)
        some_masks = _masks_of(masks, places)
        if plan.changes_logits or some_masks is not None:
            layout = make_torch_plan(plan, self._state, max_candidates=0)
            process_logits(values, layout, self._state, [lane.num_output for lane in some], some_masks)
        return values

    def describe(
        self,
        logits: torch.Tensor,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None,
        wanted: Mapping[int, Readout],
    ) -> dict[int, Distribution]:
        """What some lanes' next tokens are drawn from; to be asked before they are. Waits for the device.

        Args:
            logits: [R, V] float32 on the state's device; NaN and +inf may be replaced in place.
            lanes: One a row of `logits`.
            masks: What some of them may draw; None if all may draw anything.
            wanted: By place among the lanes, rising, what to give of the distribution.
        """
        places = list(wanted)
        changes = self._plan_for(lanes).changes_logits or masks is not None
        values = self.process(logits, lanes, masks, places) if changes else logits.contiguous()
        rows = range(len(places)) if changes else places
        return dict(zip(places, describe(values, rows, list(wanted.values()), self.outline), strict=True))

    def look(
        self,
        logits: torch.Tensor,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None,
        wanted: Mapping[int, Readout],
    ) -> WrittenLooks | None:
        """What `describe` tells, without waiting; None where that cannot be.

        Args:
            logits, lanes, masks: See `describe`; the logits are not changed.
            wanted: By place among the lanes, rising, what to give of the distribution; not none.

        Returns:
            What is wanted of each in that order, valid until the next call.
        """
        look = self._choice.look
        if look is None or not all(map(can_be_written, wanted.values())):
            return None
        rows = look(self.process(logits, lanes, masks, list(wanted)))
        return WrittenLooks(rows, list(enumerate(wanted.values())), self._state.vocab_size)

    def outline(self, logits: torch.Tensor, places: Sequence[int], num_top: int) -> Outline:
        """Looks at rows of logits. Waits for the device.

        Args:
            logits: [R, V] float32; NaN and +inf may be replaced in place.
            places: D of the rows, rising.
            num_top: K, 1 to V.
        """
        return self._choice.outline(logits, places, num_top)

    def gather_logprobs(self, logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
        """Reports tokens and their likeliest alternatives. Waits for nothing on an accelerator.

        Args:
            logits: [R, V] float32; NaN and +inf may be replaced in place.
            targets: [R] int64.
            num_top: K; more than V counts as V.
        """
        return self._choice.gather_logprobs(logits, targets, num_top)

    def _check(self, logits: torch.Tensor, lanes: Sequence[SampleLane], masks: LaneMasks | None) -> None:
        shape = (len(lanes), self._state.vocab_size)
        if logits.shape != shape or logits.dtype != torch.float32:
            raise ValueError(f"logits must be float32 {list(shape)}, got {logits.dtype} {list(logits.shape)}")
        if masks is not None:
            words = masks.words
            if words.shape != (len(masks.lanes), self._num_words) or words.dtype != np.int32:
                wanted = [len(masks.lanes), self._num_words]
                raise ValueError(f"masks must be int32 {wanted}, got {words.dtype} {list(words.shape)}")

    def _plan_for(self, lanes: Sequence[SampleLane]) -> BatchPlan:
        rows = tuple([lane.row for lane in lanes])
        if self._plan is None or self._plan.key != (self._state.version, rows):
            self._plan = make_plan(self._state, rows)
        return self._plan

    def _keep_for_logprobs(self, logits: torch.Tensor, plan: BatchPlan, *, is_changed: bool) -> torch.Tensor | None:
        """The model's own logits of lanes that report log-probabilities, copied only where they will be changed."""
        if plan.logprobs is None:
            return None
        rows = plan.logprobs.rows_of(logits)
        changes = plan.changes_logits or self._choice.changes_logits
        return rows.clone() if changes or is_changed else rows

    def _report(self, own_logits: torch.Tensor | None, token_ids: torch.Tensor, plan: BatchPlan) -> Logprobs | None:
        group = plan.logprobs
        if group is None or own_logits is None:
            return None
        found = self.gather_logprobs(own_logits, group.rows_of(token_ids), plan.num_top)
        return found if group.is_all else _spread(found, group, len(token_ids))


def _masks_of(masks: LaneMasks | None, places: Sequence[int]) -> LaneMasks | None:
    """Masks of some lanes, by their place among those."""
    if masks is None:
        return None
    rows = {lane: row for row, lane in enumerate(masks.lanes)}
    found = [(at, rows[place]) for at, place in enumerate(places) if place in rows]
    if not found:
        return None
    return LaneMasks([at for at, _ in found], masks.words[[row for _, row in found]])


def _choice_of(state: SamplerState, team: object | None, form: str | None) -> Choice:
    if state.device.type == "cpu" and form != TORCH:
        native = find_native_sampling(state.vocab_size, form=form, team=team)
        if native is not None:
            return NativeChoice(state, native)
    if state.device.type == "cuda" and form != TORCH and cuda_status(state.device).available:
        from engine.cuda.choice import CudaChoice  # imports Triton, which is not everywhere

        return CudaChoice(state)
    return TorchChoice(state)


def _spread(found: Logprobs, group: LaneGroup, num_lanes: int) -> Logprobs:
    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros((num_lanes, *values.shape[1:])).index_copy_(0, group.index, values)

    return Logprobs(spread(found.chosen), spread(found.rank), spread(found.top_ids), spread(found.top_logprobs))
