"""Decoding steps recorded as CUDA graphs: from the newest tokens to the next, in one launch.

    host      stage lanes ──────────▶ copy one block ─▶ replay ─▶ copy tokens back        (waits for nothing)
    device                            tokens, layers, logits, draw: ~140 kernels

One graph serves any lanes of its width whose contexts fit: all that changes from step to step is read on the device
from the block. Letters: L lanes of the step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import torch

from engine.cuda.buffers import DecodeBuffers
from engine.cuda.decoding import Decoding
from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import DrawForm, DrawLanes, launch_draw
from engine.cuda.lanes import NO_ROW, DecodeLanes, LanePacker, packed_size
from engine.cuda.model import CudaModel
from engine.cuda.plan import CONTEXTS, WIDTHS, DecodePlan, buckets, make_plan
from engine.cuda.program_ending import ProgramEnding
from engine.cuda.program_graphs import ProgramGraphs
from engine.kv.storage import KVStorage
from engine.programs.session import ProgramLane
from engine.runner.decoding import ProgramStep
from engine.sampling.state import SamplerState
from engine.scheduling.batch import Lane

Ending = Literal["logits", "plain", "full"]
"""Where a recorded step ends: before the draw, or with tokens, drawn with few or all parameters.

It may also end with a device program, see `engine.cuda.program_ending`."""

_BLOCKS = 4
"""Pinned blocks in turn: one is filled while others are still on their way."""


class StagedLanes(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Lanes ready for a recorded step.

    Attributes:
        step: Which kind.
        block: For its `DecodeLanes`, in pinned memory.
        rows: [L], rows of device state.
        num_outputs: [L], output tokens before the one to draw.
    """

    step: _RecordedStep
    block: torch.Tensor
    rows: tuple[int, ...]
    num_outputs: list[int]


class GraphDecoder:
    """A `DecodeStep` that replays graphs; on a CPU, for tests, it launches their kernels one by one.

    Args:
        model: The weights.
        storage: K and V.
        state: Rows of device state.
        max_lanes: Most lanes of a step.
        max_context: Tokens of the longest context.
        pdl: Kernels may begin before those in front of them have ended.

    Attributes:
        state: The same.
    """

    def __init__(
        self, model: CudaModel, storage: KVStorage, state: SamplerState, *, max_lanes: int, max_context: int, pdl: bool
    ) -> None:
        self.state = state
        self._widths = buckets(WIDTHS, max_lanes)
        self._contexts = buckets(CONTEXTS, max_context)
        plans = {
            (width, context): make_plan(model, width, context) for width in self._widths for context in self._contexts
        }
        self._table = DrawTable(state, max_lanes=max_lanes)
        self._tokens = torch.zeros(max_lanes, dtype=torch.int64, device=model.device)
        self._drawn_by: dict[tuple[int, tuple[int, ...]], Ending] = {}
        self._programs = ProgramGraphs(state, self._table, max_context)
        shared = _Shared(DecodeBuffers(model, list(plans.values())), storage, state, self._table, self._tokens, pdl)
        self._steps = {key: _RecordedStep(plan, shared) for key, plan in plans.items()}

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

    def draw(self, staged: StagedLanes) -> torch.Tensor | None:
        """Starts a step that draws; see `DecodeStep.draw`."""
        ending = self._ending(staged.rows)
        if ending == "logits":
            return None
        self._table.sync(staged.rows, staged.num_outputs)
        staged.step.replay(staged.block, ending)
        return self._drawn(staged)

    def draw_by_program(self, staged: StagedLanes, lanes: Sequence[ProgramLane]) -> ProgramStep | None:
        """Starts a step that ends with a program, if it is recorded; see `DecodeStep.draw_by_program`."""
        if self._ending(staged.rows) == "logits":
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
        places = [lane.row for lane in lanes]
        noted = {name: values[places] for name, values in staged.step.noted(ending).items()}
        return ProgramStep(self._drawn(staged), [(places, noted)] if noted else ())

    def recall(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """See `DecodeStep.recall`."""
        self._programs.recall(rows, lanes)

    def rest(self) -> None:
        """Records a step with a program, if one is due; see `DecodeStep.rest`."""
        self._programs.record_due()

    def forward(self, staged: StagedLanes) -> torch.Tensor:
        """Starts a step that ends with logits; see `DecodeStep.forward`."""
        staged.step.replay(staged.block, "logits")
        return staged.step.logits[: len(staged.rows)]

    def record(self, endings: Sequence[Ending] = ("plain",)) -> None:
        """Compiles and records steps ahead of their use."""
        for step in self._steps.values():
            for ending in endings:
                step.record(ending)

    def _drawn(self, staged: StagedLanes) -> torch.Tensor:
        tokens = self._tokens[: len(staged.rows)]
        return tokens if tokens.is_cuda else tokens.clone()  # copies to the host queue up before the next step

    def _ending(self, rows: tuple[int, ...]) -> Ending:
        """What a draw for some rows needs; worked out anew when a row was assigned or released."""
        key = (self.state.version, rows)
        found = self._drawn_by.get(key)
        if found is None:
            self._drawn_by.clear()
            found = self._drawn_by[key] = self._ending_of(rows)
        return found

    def _ending_of(self, rows: tuple[int, ...]) -> Ending:
        if any(self.state[row].params.logprobs is not None for row in rows):
            return "logits"
        return "plain" if self._table.is_plain(rows) else "full"


class _Shared(msgspec.Struct, frozen=True, eq=False):
    """What all recorded steps work on."""

    buffers: DecodeBuffers
    storage: KVStorage
    state: SamplerState
    table: DrawTable
    tokens: torch.Tensor
    pdl: bool
    pool: list[Any] = msgspec.field(default_factory=list)
    """Memory that recorded steps share, once there is one: they never run at the same time."""


class _RecordedStep:
    """All endings of one kind of step."""

    def __init__(self, plan: DecodePlan, shared: _Shared) -> None:
        self._plan = plan
        self._shared = shared
        self._columns = -(-plan.context // shared.storage.page_size)
        self._replays: dict[Ending | ProgramEnding, Callable[[], None]] = {}
        self._noted: dict[ProgramEnding, Mapping[str, torch.Tensor]] = {}
        self._packer: LanePacker | None = None
        self._blocks: list[torch.Tensor] = []
        self._turn = 0
        self._lanes: DecodeLanes | None = None

    @property
    def context(self) -> int:
        """Tokens of the longest context that fits."""
        return self._plan.context

    @property
    def logits(self) -> torch.Tensor:
        """[width, V] float32, of the last replay."""
        return self._shared.buffers.logits[: self._plan.width]

    def stage(self, lanes: Sequence[Lane]) -> StagedLanes:
        """Fills the next of the pinned blocks."""
        if self._packer is None:
            self._packer = LanePacker(self._plan.width, self._columns)
            size = self._plan.width, self._columns
            self._blocks = [self._pinned(*size) for _ in range(_BLOCKS)]
        self._turn = (self._turn + 1) % _BLOCKS
        block = self._blocks[self._turn]
        block.numpy()[:] = self._packer.pack(lanes)
        return StagedLanes(
            step=self,
            block=block,
            rows=tuple([lane.row for lane in lanes]),
            num_outputs=[lane.start + 1 - lane.sequence.num_prompt for lane in lanes],
        )

    def replay(self, block: torch.Tensor, ending: Ending | ProgramEnding) -> None:
        """Starts the step on the lanes of a block."""
        replay = self._replays.get(ending)
        if replay is None:
            replay = self.record(ending)
        assert self._lanes is not None
        self._lanes.packed.copy_(block, non_blocking=True)
        replay()

    def has(self, ending: ProgramEnding) -> bool:
        """Whether it is recorded with this ending."""
        return ending in self._replays

    def noted(self, ending: ProgramEnding) -> Mapping[str, torch.Tensor]:
        """What a program noted down in the last replay, by name: [width, any]."""
        return self._noted[ending]

    def record_program(self, ending: ProgramEnding) -> None:
        """Records the step with this ending."""
        try:
            self.record(ending)
        except BaseException:
            self._noted.pop(ending, None)
            raise

    def forget(self, ending: ProgramEnding) -> None:
        """Gives a recording up, which must not be running."""
        del self._replays[ending]
        self._noted.pop(ending, None)

    def record(self, ending: Ending | ProgramEnding) -> Callable[[], None]:
        """Makes a graph of the step, once it has run on nothing but padding."""
        shared, plan = self._shared, self._plan
        device = shared.storage.device
        if self._lanes is None:
            self._lanes = DecodeLanes(plan.width, self._columns, device)
        lanes = self._lanes
        lanes.packed.zero_()
        lanes.rows.fill_(NO_ROW)
        decoding = Decoding(plan, lanes, shared.storage, shared.buffers, shared.state.last_tokens, pdl=shared.pdl)

        def draw(logits: torch.Tensor, form: DrawForm, *, pdl: bool) -> None:
            own = DrawLanes(lanes.rows, lanes.draw_positions, lanes.num_outputs)
            launch_draw(logits, shared.table, own, shared.tokens, num_lanes=plan.width, form=form, pdl=pdl)

        def run() -> None:
            logits = decoding.launch()
            if isinstance(ending, ProgramEnding):
                tokens, last_tokens = shared.tokens[: plan.width], shared.state.last_tokens
                # What comes before the draw are operations of torch, which let nothing behind them begin early.
                noted = ending.launch(logits, lanes, plan.context, tokens, last_tokens, partial(draw, pdl=False))
                self._noted[ending] = noted  # of a graph: where each replay writes it
            elif ending != "logits":
                draw(logits, ending, pdl=shared.pdl)

        replay = self._replays[ending] = _captured(run, device, shared.pool)
        return replay

    def _pinned(self, width: int, columns: int) -> torch.Tensor:
        is_cuda = self._shared.storage.device.type == "cuda"
        return torch.zeros(packed_size(width, columns), dtype=torch.int32, pin_memory=is_cuda)


def _captured(run: Callable[[], None], device: torch.device, pool: list[Any]) -> Callable[[], None]:
    """Runs once, which compiles what is not compiled, and returns what does the same as one launch."""
    if device.type != "cuda":
        return run
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.inference_mode():
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on meanwhile: what they do with the device is theirs.
        with torch.cuda.graph(graph, pool=pool[0] if pool else None, stream=stream, capture_error_mode="thread_local"):
            run()
    if not pool:
        pool.append(graph.pool())
    replay: Callable[[], None] = graph.replay
    return replay
