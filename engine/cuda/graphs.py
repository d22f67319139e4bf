"""Decoding steps recorded as CUDA graphs: from the newest tokens to the next, in one launch.

    host      stage lanes ──────────▶ copy one block ─▶ replay ─▶ copy tokens back        (waits for nothing)
    device                            tokens, layers, logits, draw: ~140 kernels

One graph serves any lanes of its width whose contexts fit: all that changes from step to step is read on the device
from the block. Letters: L lanes of the step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from engine.cuda.buffers import DecodeBuffers
from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import FULL, PLAIN, DrawForm, DrawLanes, launch_draw
from engine.cuda.lanes import uploaded_fields
from engine.cuda.looks import Looks
from engine.cuda.model import CudaModel
from engine.cuda.plan import CONTEXTS, WIDTHS, buckets, make_plan
from engine.cuda.program_graphs import ProgramGraphs
from engine.cuda.prompt_graphs import PromptGraphs
from engine.cuda.recorded_step import Ending, Looked, RecordedStep, SharedMemory, StagedLanes
from engine.cuda.recordings import Recordings
from engine.kv.storage import KVStorage
from engine.programs.session import ProgramLane
from engine.runner.decoding import DrawnStep
from engine.sampling.choice import SampleLane
from engine.sampling.state import SamplerState, upload
from engine.scheduling.batch import Lane

MOST_LOOKED_AT = 64
"""Recorded steps that tell what tokens are drawn from; the one that was used longest ago goes first."""


class GraphDecoder:
    """A `DecodeStep` that replays graphs; on a CPU, for tests, it launches their kernels one by one.

    Args:
        model: The weights.
        storage: K and V.
        state: Rows of device state.
        max_lanes: Most lanes of a step.
        max_context: Tokens of the longest context.
        pdl: Kernels may begin before those in front of them have ended.
        prompts: Recorded steps with prompts, if there are to be any: they are recorded when no step waits.
        records_programs: Steps with device programs are recorded too, likewise.

    Attributes:
        state: The same.
    """

    def __init__(
        self,
        model: CudaModel,
        storage: KVStorage,
        state: SamplerState,
        *,
        max_lanes: int,
        max_context: int,
        pdl: bool,
        prompts: PromptGraphs | None = None,
        records_programs: bool = False,
    ) -> None:
        self.state = state
        self._pdl = pdl
        self._prompts = prompts
        self._widths = buckets(WIDTHS, max_lanes)
        self._contexts = buckets(CONTEXTS, max_context)
        plans = {
            (width, context): make_plan(model, width, context) for width in self._widths for context in self._contexts
        }
        self._table = DrawTable(state, max_lanes=max_lanes)
        self._tokens = torch.zeros(max_lanes, dtype=torch.int64, device=model.device)
        self._looks = Looks(max_lanes, state.vocab_size, model.device)
        self._looked: Recordings[tuple[RecordedStep, Looked]] = Recordings(
            lambda recording: _record(*recording),
            lambda recording: recording[0].forget(recording[1]),
            lambda _: None,
            most=MOST_LOOKED_AT,
            device=model.device,
        )
        self._drawn_by: dict[tuple[int, tuple[int, ...]], Literal["logits"] | DrawForm] = {}
        self._programs = ProgramGraphs(state, self._table, max_context, pdl=pdl) if records_programs else None
        shared = SharedMemory(
            DecodeBuffers(model, list(plans.values())), storage, state, self._table, self._tokens, self._looks, pdl
        )
        self._steps = {key: RecordedStep(plan, shared) for key, plan in plans.items()}

    def stage(self, lanes: Sequence[Lane]) -> StagedLanes | None:
        """Lays lanes out; see `DecodeStep.stage`."""
        if len(lanes) > self._widths[-1]:
            return None
        longest = max([lane.start for lane in lanes]) + 1
        if longest > self._contexts[-1]:
            return None
        width = next(width for width in self._widths if width >= len(lanes))
        context = next(context for context in self._contexts if context >= longest)
        return self._steps[width, context].stage(lanes)

    def draw(self, staged: StagedLanes, *, looks: bool = False) -> DrawnStep | None:
        """Starts a step that draws; see `DecodeStep.draw`."""
        form = self._ending(staged.rows)
        if form == "logits":
            return None
        ending = Looked(form) if looks else form
        if isinstance(ending, Looked) and not self._looked.use((staged.step, ending)):
            return None
        self._table.sync(staged.rows, staged.num_outputs)
        staged.step.replay(staged.block, ending)
        return DrawnStep(
            self._tokens_of(len(staged.rows)), looks=self._looks.found[: len(staged.rows)] if looks else None
        )

    def draw_by_program(self, staged: StagedLanes, lanes: Sequence[ProgramLane]) -> DrawnStep | None:
        """Starts a step that ends with a program, if it is recorded; see `DecodeStep.draw_by_program`."""
        if self._programs is None or self._ending(staged.rows) == "logits":
            return None
        found = self._programs.ending(staged.step, staged.rows, lanes)
        if found is None:
            return None
        ending, sync = found
        rows = [staged.rows[lane.row] for lane in lanes]
        self._table.sync(staged.rows, staged.num_outputs)
        sync.bring(rows, lanes)
        staged.step.replay(staged.block, ending)
        sync.drawn(rows, lanes)
        noted = _noted(staged.step.noted(ending), [lane.row for lane in lanes], len(staged.rows))
        return DrawnStep(self._tokens_of(len(staged.rows)), noted)

    def finish_by_program(
        self, logits: torch.Tensor, lanes: Sequence[SampleLane], own: Sequence[ProgramLane]
    ) -> DrawnStep | None:
        """Draws from logits of another step, some by a program; see `DecodeStep.finish_by_program`."""
        rows = tuple([lane.row for lane in lanes])
        if self._programs is None or len(rows) > self._widths[-1] or self._ending(rows) == "logits":
            return None
        found = self._programs.ending_of_logits(rows, own)
        if found is None:
            return None
        ending, sync = found
        self._table.sync(rows, [lane.num_output for lane in lanes])
        own_rows = [rows[lane.row] for lane in own]
        sync.bring(own_rows, own)
        numbers = [rows, [lane.position for lane in lanes], [lane.num_output for lane in lanes]]
        fields = DrawLanes(*uploaded_fields(numbers, self.state.device))
        tokens = self._tokens[: len(rows)]

        def draw(scores: torch.Tensor, form: DrawForm) -> None:
            launch_draw(scores, self._table, fields, tokens, num_lanes=len(rows), form=form, pdl=self._pdl)

        context = max(lane.position for lane in lanes)
        noted = ending.launch(
            logits.contiguous(),
            fields.rows,
            fields.positions,
            context,
            tokens,
            self.state.last_tokens,
            draw,
            is_recorded=False,
        )
        sync.drawn(own_rows, own)
        return DrawnStep(self._tokens_of(len(rows)), _noted(noted, [lane.row for lane in own], len(rows)))

    def recall(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """See `DecodeStep.recall`."""
        if self._programs is not None:
            self._programs.recall(rows, lanes)

    def rest(self) -> None:
        """Records a step of each kind that is recorded when it is used, if it is due; see `DecodeStep.rest`."""
        self._looked.rest()
        if self._programs is not None:
            self._programs.rest()
        if self._prompts is not None:
            self._prompts.rest()

    def forward(self, staged: StagedLanes) -> torch.Tensor:
        """Starts a step that ends with logits; see `DecodeStep.forward`."""
        staged.step.replay(staged.block, "logits")
        return staged.step.logits[: len(staged.rows)]

    def record(self, endings: Sequence[Ending] = ("plain",)) -> None:
        """Compiles and records steps ahead of their use; and compiles what looks at distributions."""
        device = self.state.device
        nobody = torch.zeros(1, dtype=torch.int32, device=device)
        for pdl in {False, self._pdl}:  # of steps that are not recorded, and of those that are
            self._looks.launch(torch.zeros((1, self.state.vocab_size), device=device), nobody, 1, pdl=pdl)
        for step in self._steps.values():
            for ending in endings:
                step.record(ending)

    def _tokens_of(self, num_lanes: int) -> torch.Tensor:
        tokens = self._tokens[:num_lanes]
        return tokens if tokens.is_cuda else tokens.clone()  # copies to the host queue up before the next step

    def _ending(self, rows: tuple[int, ...]) -> Literal["logits"] | DrawForm:
        """What a draw for some rows needs; worked out anew when a row was assigned or released."""
        key = (self.state.version, rows)
        found = self._drawn_by.get(key)
        if found is None:
            self._drawn_by.clear()
            found = self._drawn_by[key] = self._ending_of(rows)
        return found

    def _ending_of(self, rows: tuple[int, ...]) -> Literal["logits"] | DrawForm:
        if any(self.state[row].params.logprobs is not None for row in rows):
            return "logits"
        return PLAIN if self._table.is_plain(rows) else FULL


def _noted(
    found: Mapping[str, torch.Tensor], places: list[int], num_lanes: int
) -> Sequence[tuple[Sequence[int], Mapping[str, torch.Tensor]]]:
    """What a program noted down for the lanes at some places, of values [at least `num_lanes`, any]."""
    if not found:
        return ()
    if len(places) == num_lanes:  # in order, as lanes are
        return [(places, {name: values[:num_lanes] for name, values in found.items()})]
    device = next(iter(found.values())).device
    index = upload(places, torch.int64, device)
    return [(places, {name: values.index_select(0, index) for name, values in found.items()})]


def _record(step: RecordedStep, ending: Looked) -> None:
    step.record(ending)
