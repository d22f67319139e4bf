"""One kind of decoding step, recorded with every ending that it may have.

Letters: L lanes of the step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import torch

from engine.cuda.buffers import DecodeBuffers
from engine.cuda.decoding import Decoding
from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import DrawForm, DrawLanes, launch_draw
from engine.cuda.lanes import NO_ROW, DecodeLanes, LanePacker, packed_size
from engine.cuda.looks import Looks
from engine.cuda.plan import DecodePlan
from engine.cuda.program_ending import ProgramEnding
from engine.cuda.recordings import capture
from engine.kv.storage import KVStorage
from engine.sampling.state import SamplerState
from engine.scheduling.batch import Lane


class Looked(NamedTuple):
    """A step ends with tokens, and with what the distributions look like that they were drawn from."""

    form: DrawForm


Ending = Literal["logits"] | DrawForm | Looked
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

    step: RecordedStep
    block: torch.Tensor
    rows: tuple[int, ...]
    num_outputs: list[int]


class SharedMemory(msgspec.Struct, frozen=True, eq=False):
    """What all recorded steps work on."""

    buffers: DecodeBuffers
    storage: KVStorage
    state: SamplerState
    table: DrawTable
    tokens: torch.Tensor
    looks: Looks
    pdl: bool
    pool: list[Any] = msgspec.field(default_factory=list)
    """Memory that recorded steps share, once there is one: they never run at the same time."""


class RecordedStep:
    """All endings of one kind of step."""

    def __init__(self, plan: DecodePlan, shared: SharedMemory) -> None:
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
        ending.has_run = True

    def forget(self, ending: Ending | ProgramEnding) -> None:
        """Gives a recording up, which must not be running."""
        del self._replays[ending]
        if isinstance(ending, ProgramEnding):
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

        def draw(logits: torch.Tensor, form: DrawForm) -> None:
            own = DrawLanes(lanes.rows, lanes.draw_positions, lanes.num_outputs)
            launch_draw(logits, shared.table, own, shared.tokens, num_lanes=plan.width, form=form, pdl=shared.pdl)

        def run() -> None:
            logits = decoding.launch()
            if isinstance(ending, ProgramEnding):
                tokens, last_tokens = shared.tokens[: plan.width], shared.state.last_tokens
                positions = lanes.draw_positions
                noted = ending.launch(logits, lanes.rows, positions, plan.context, tokens, last_tokens, draw)
                self._noted[ending] = noted  # of a graph: where each replay writes it
            elif isinstance(ending, Looked):
                draw(logits, ending.form)
                shared.looks.launch(
                    logits, lanes.looks, plan.width, pdl=shared.pdl
                )  # edits are in the logits, truncation is not
            elif ending != "logits":
                draw(logits, ending)

        replay = self._replays[ending] = capture(run, device, shared.pool)
        return replay

    def _pinned(self, width: int, columns: int) -> torch.Tensor:
        is_cuda = self._shared.storage.device.type == "cuda"
        return torch.zeros(packed_size(width, columns), dtype=torch.int32, pin_memory=is_cuda)
