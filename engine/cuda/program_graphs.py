"""Which device programs end recorded steps, and their tables."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import FULL, PLAIN, DrawForm
from engine.cuda.program_ending import ProgramEnding
from engine.cuda.program_sync import TableSync
from engine.cuda.program_table import MOST_HISTORY, MOST_TABLE_BYTES, ProgramTable, table_bytes
from engine.cuda.recordings import Recordings
from engine.programs.binding import BoundProgram
from engine.programs.session import ProgramLane
from engine.sampling.state import SamplerState

MOST_STEPS = 48
"""Recorded steps with programs; the one that was used longest ago goes first."""

MOST_PROGRAMS = 16
"""Programs with recorded steps."""


class RecordableStep(Protocol):
    """A kind of step that can be recorded with any ending."""

    @property
    def context(self) -> int:
        """Tokens of the longest context that fits."""
        ...

    def record_program(self, ending: ProgramEnding) -> None:
        """Records it."""
        ...

    def forget(self, ending: ProgramEnding) -> None:
        """Gives its recording up."""
        ...


class _Program:
    """A program, its table, and its endings so far."""

    def __init__(self, table: ProgramTable, *, pdl: bool) -> None:
        self.table = table
        self._pdl = pdl
        self.sync = TableSync(table)
        self.endings: dict[tuple[bool, DrawForm], ProgramEnding] = {}

    def ending(self, is_alone: bool, form: DrawForm) -> ProgramEnding:
        if (is_alone, form) not in self.endings:
            self.endings[is_alone, form] = ProgramEnding(self.table, is_alone=is_alone, form=form, pdl=self._pdl)
        return self.endings[is_alone, form]


_Recording = tuple[RecordableStep, ProgramEnding]


class ProgramGraphs:
    """Recorded steps that end with device programs; used by the device's thread alone.

    Args:
        state: Rows of device state.
        draws: Parameters of draws, as recorded steps read them.
        max_context: Tokens of the longest sequence.
        pdl: Kernels may begin before those in front of them have ended.
    """

    def __init__(self, state: SamplerState, draws: DrawTable, max_context: int, *, pdl: bool = False) -> None:
        self._state = state
        self._max_context = max_context
        self._draws = draws
        self._pdl = pdl
        self._programs: OrderedDict[str, _Program | None] = OrderedDict()
        self._recordings: Recordings[_Recording] = Recordings(
            _record,
            _forget,
            lambda recording: self._give_up(recording[1]),
            most=MOST_STEPS,
            device=state.device,
            is_ready=lambda recording: recording[1].is_ready(),
        )

    def ending(
        self, step: RecordableStep, rows: Sequence[int], lanes: Sequence[ProgramLane]
    ) -> tuple[ProgramEnding, TableSync] | None:
        """How a step ends that is recorded, and what to sync before; None if it is not, or not yet.

        Args:
            step: Which kind.
            rows: Rows of device state of all its lanes.
            lanes: Those that run a program, alike all of them.
        """
        program = self._program(lanes[0].session.kind, lanes[0].session.bound)
        if program is None or step.context > (program.table.most_context or step.context):
            return None
        ending = program.ending(*self._kind_of_ending(rows, lanes))
        return (ending, program.sync) if self._recordings.use((step, ending)) else None

    def ending_of_logits(
        self, rows: Sequence[int], lanes: Sequence[ProgramLane]
    ) -> tuple[ProgramEnding, TableSync] | None:
        """How a step ends that is not recorded itself, where recorded ones with the same program have been.

        So what the program carries from step to step stays where those find it.

        Args:
            rows: Rows of device state of all its lanes.
            lanes: Those that run a program, alike all of them.
        """
        program = self._programs.get(lanes[0].session.kind)
        if program is None:
            return None
        most = program.table.most_context
        if most is not None and max(lane.position for lane in lanes) > most:
            return None
        ending = program.endings.get(self._kind_of_ending(rows, lanes))
        return (ending, program.sync) if ending is not None and ending.has_run else None

    def recall(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """See `DecodeStep.recall`."""
        if not self._recordings:
            return
        for row, lane in zip(rows, lanes, strict=True):
            program = self._programs.get(lane.session.kind)
            if program is not None:
                program.sync.recall(row, lane.session, lane.position)

    def rest(self) -> None:
        """No step waits: records one that is due. Raises nothing."""
        self._recordings.rest()

    def _kind_of_ending(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> tuple[bool, DrawForm]:
        """Whether all lanes run the program, and how the others draw."""
        own = {lane.row for lane in lanes}
        others = [row for at, row in enumerate(rows) if at not in own]
        return not others, PLAIN if self._draws.is_plain(others) else FULL

    def _program(self, kind: str, bound: BoundProgram) -> _Program | None:
        if kind in self._programs:
            self._programs.move_to_end(kind)
            return self._programs[kind]
        while len(self._programs) >= MOST_PROGRAMS:
            oldest = next(iter(self._programs))
            self._drop(self._programs.pop(oldest))
        self._programs[kind] = self._made(bound)
        return self._programs[kind]

    def _made(self, bound: BoundProgram) -> _Program | None:
        state = self._state
        context = min(self._max_context, MOST_HISTORY)
        if table_bytes(bound, state.num_rows, state.vocab_size, context) > MOST_TABLE_BYTES:
            return None
        table = ProgramTable(bound, state.num_rows, state.vocab_size, state.device, self._max_context)
        return _Program(table, pdl=self._pdl)

    def _give_up(self, ending: ProgramEnding) -> None:
        for kind, program in self._programs.items():
            if program is not None and program.table is ending.table:
                self._drop(program)
                self._programs[kind] = None
                return

    def _drop(self, program: _Program | None) -> None:
        if program is None:
            return
        self._recordings.drop(lambda recording: recording[1].table is program.table)
        program.sync.leave()


def _record(recording: _Recording) -> None:
    step, ending = recording
    step.record_program(ending)


def _forget(recording: _Recording) -> None:
    step, ending = recording
    step.forget(ending)
