"""Keeps what recorded steps know of device programs, and what sessions know of themselves, in step with each other.

Sessions see their states in the table as views, so that a step computed without a graph goes on from them; tokens
they are told when they need them. Costs nothing on the device while the same rows go on in recorded steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.cuda.program_table import STATES, ProgramTable
from engine.programs.reference import DTYPES
from engine.programs.session import ProgramLane, ProgramSession

_View = Mapping[str, torch.Tensor]


class _Held(msgspec.Struct, eq=False):
    """Whose a row is.

    Attributes:
        session: It, if it is still there.
        tokens_at: Position before which its newest tokens are in the table.
        is_behind: Tokens are in the table that the session does not know.
    """

    session: weakref.ref[ProgramSession]
    tokens_at: int = -1
    is_behind: bool = False


class _Last(msgspec.Struct, frozen=True, eq=False):
    """The newest step, not noted on its rows and sessions yet: most steps go on where the one before has ended.

    Attributes:
        rows: Of the lanes.
        positions: Of the tokens that were drawn.
        count: Steps that went on like that, this one included.
    """

    rows: list[int]
    positions: list[int]
    count: int


class TableSync:
    """Fills a table from sessions, and tells these what was drawn by it.

    Args:
        table: The table; written by nobody else but steps that end with the program.
    """

    def __init__(self, table: ProgramTable) -> None:
        self._table = table
        self._views = [[self._view(row, parity) for parity in range(STATES)] for row in range(table.spare)]
        self._held: dict[int, _Held] = {}
        self._rows: frozenset[int] = frozenset()
        self._last: _Last | None = None

    def bring(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Brings rows up to date before a step; costs nothing on the device where nothing has changed.

        Args:
            rows: Of the lanes.
            lanes: All that run the program in the step, and where they stand.
        """
        if self._goes_on(rows, lanes):
            return
        self._note()
        fresh = [at for at, row in enumerate(rows) if not self._holds(row, lanes[at].session)]
        if fresh:
            self._take(rows, lanes, fresh)
        if self._rows != frozenset(rows):
            self._rows = frozenset(rows)
            used = np.zeros(self._table.spare + 1, dtype=np.bool_)
            used[list(rows)] = True
            self._table.used.copy_(self._sent(used))
        if self._table.states:
            self._sync_states(rows, lanes)
        if self._table.num_seen:
            self._sync_tokens(rows, lanes)

    def drawn(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """To be told that a step has been started. Sessions find their state once something else happens."""
        count = 1 if self._last is None else self._last.count + 1  # `bring` has noted another one's
        self._last = _Last(list(rows), [lane.position for lane in lanes], count)

    def recall(self, row: int, session: ProgramSession, position: int) -> None:
        """Tells a session, which goes on elsewhere, the newest tokens before a position if it may not know them."""
        self._note()
        held = self._held.get(row)
        if held is None or held.session() is not session or not held.is_behind:
            return
        held.tokens_at, held.is_behind = -1, False
        if position > 0 and self._table.num_seen:
            newest = (position - 1) % self._table.room
            session.append(position - 1, self._table.tokens[row, newest : newest + 1])  # which makes room for all
            places, history = self._sent(self._token_places(position)), session.history(position)
            history[len(history) - len(places) :] = self._table.tokens[row].index_select(0, places)

    def leave(self) -> None:
        """Gives sessions what is theirs; the table is given up."""
        self._note()
        for row, held in self._held.items():
            session = held.session()
            if session is not None:
                self.recall(row, session, held.tokens_at)

    def _goes_on(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> bool:
        """Whether a step goes on where the last one has ended, with the same lanes."""
        last = self._last
        if last is None or rows != last.rows or [lane.position - 1 for lane in lanes] != last.positions:
            return False
        return [self._held[row].session() for row in rows] == [lane.session for lane in lanes]

    def _note(self) -> None:
        """Notes on rows and sessions what steps have come to that went on where the one before had ended."""
        last, self._last = self._last, None
        if last is None:
            return
        for row, position in zip(last.rows, last.positions, strict=True):
            held = self._held[row]
            held.tokens_at, held.is_behind = position + 1, True
            session = held.session()
            if not self._table.states or session is None:
                continue
            if last.count > 1:
                session.keep(position - 1, self._views[row][(position - 1) % STATES])
            session.keep(position, self._views[row][position % STATES])

    def _holds(self, row: int, session: ProgramSession) -> bool:
        held = self._held.get(row)
        return held is not None and held.session() is session

    def _take(self, rows: Sequence[int], lanes: Sequence[ProgramLane], fresh: Sequence[int]) -> None:
        """Writes down parameters of sessions that are new in their rows."""
        for at in fresh:
            self._part(rows[at])
            self._held[rows[at]] = _Held(weakref.ref(lanes[at].session))
        sessions = [lanes[at].session for at in fresh]
        index = self._sent(np.array([rows[at] for at in fresh], dtype=np.int64))
        numbers = [[session.stream_key, session.num_prompt] for session in sessions]
        self._table.numbers.index_copy_(0, index, self._sent(np.array(numbers, dtype=np.int64)))
        for name, kind in self._table.bound.types:
            dtype = DTYPES[kind.kind]
            values = [np.atleast_1d(np.asarray(session.bound.parameters[name], dtype)) for session in sessions]
            self._table.parameters[name].index_copy_(0, index, self._sent(np.stack(values)))

    def _part(self, row: int) -> None:
        """A row goes to another session: whose it was takes along what it sees there."""
        held = self._held.pop(row, None)
        session = None if held is None else held.session()
        if session is None:
            return
        views = self._views[row]
        session.states = {
            at: {name: value.clone() for name, value in state.items()} if any(state is one for one in views) else state
            for at, state in session.states.items()
        }

    def _sync_states(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Writes states that are not in the table: first ones, and those of steps without a graph."""
        stale = [
            at
            for at, row in enumerate(rows)
            if lanes[at].session.states.get(lanes[at].position - 1)
            is not self._views[row][(lanes[at].position - 1) % STATES]
        ]
        if not stale:
            return
        first = [at for at in stale if lanes[at].position == lanes[at].session.num_prompt]
        later = [at for at in stale if lanes[at].position != lanes[at].session.num_prompt]
        befores = [lanes[at].session.states[lanes[at].position - 1] for at in later]
        if first:
            befores.insert(0, self._first_states([rows[at] for at in first]))
        stale = first + later
        places = [rows[at] * STATES + (lanes[at].position - 1) % STATES for at in stale]
        index = self._sent(np.array(places, dtype=np.int64))
        for name, values in self._table.states.items():
            values.index_copy_(0, index, torch.cat([before[name] for before in befores]))
        for at in stale:
            position = lanes[at].position - 1
            lanes[at].session.keep(position, self._views[rows[at]][position % STATES])

    def _first_states(self, rows: Sequence[int]) -> _View:
        """States [rows, any] before their first tokens."""
        index = self._sent(np.array(rows, dtype=np.int64))
        parameters = {name: values.index_select(0, index) for name, values in self._table.parameters.items()}
        return self._table.program.first_state(parameters, len(rows))

    def _sync_tokens(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Writes the newest tokens of sessions that are new here or have drawn elsewhere."""
        table = self._table
        known: list[npt.NDArray[np.int64]] = []  # places in the table and tokens that the host knows
        for row, lane in zip(rows, lanes, strict=True):
            held, position = self._held[row], lane.position
            if held.tokens_at in (position, position + 1):  # the latter: drawn again
                continue
            held.tokens_at, held.is_behind = position, False
            places, begun = self._token_places(position), lane.session.begun(position)
            if begun is not None:
                known.append(np.stack([row * table.room + places, begun[len(begun) - len(places) :]]))
                continue
            history = lane.session.history(position)
            table.tokens[row].index_copy_(0, self._sent(places), history[len(history) - len(places) :])
        if known:
            index, tokens = self._sent(np.concatenate(known, axis=1))
            table.tokens.view(-1).index_copy_(0, index, tokens)

    def _token_places(self, position: int) -> npt.NDArray[np.int64]:
        """Where the newest tokens before a position lie in a row, as many as are seen."""
        return np.arange(max(0, position - self._table.num_seen), position, dtype=np.int64) % self._table.room

    def _view(self, row: int, parity: int) -> _View:
        at = row * STATES + parity
        return {name: values[at : at + 1] for name, values in self._table.states.items()}

    def _sent(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        host = torch.from_numpy(values)
        return host if self._table.device.type == "cpu" else host.pin_memory().to(self._table.device, non_blocking=True)
