"""What device programs of running sequences know, by row of device state, where a recorded step reads and writes it.

A row holds what a session holds otherwise (`engine.programs.session`): parameters, the state after the last two tokens
and, for programs that look back at some tokens, the newest ones. Sessions see their states here as views, so that a
step computed without a graph goes on from them.

Letters: R rows of device state, V vocabulary, K tokens that a program looks back at, T tokens of the longest history.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.programs.binding import BoundProgram
from engine.programs.graph import Graph
from engine.programs.reference import DTYPES as HOST_DTYPES
from engine.programs.session import ProgramLane, ProgramSession
from engine.programs.torch_form import DTYPES, BatchValues, TorchProgram
from engine.programs.types import Type
from engine.sampling.random import position_keys

MOST_RECENT = 64
"""Tokens back from the newest up to which a program counts as one that looks at some: of others all tokens are kept."""

MOST_HISTORY = 8192
"""Tokens of all of a history that a recorded step can read."""

MOST_TABLE_BYTES = 256 * 2**20
"""Memory for what the sequences of one program carry."""

_OF_TOKENS = frozenset({"history", "places", "counts"})
_STATES = 2
"""States a row: after an even and after an odd position. A step may be computed again, from the state before."""

_View = Mapping[str, torch.Tensor]


def tokens_seen(graph: Graph) -> int | None:
    """Newest tokens of the history that a program reads, at most; None if it reads all, or many."""
    seen = 0
    for node in graph.nodes:
        if node.op == "recent":
            seen = max(seen, int(node.attributes[0]))
        elif node.op == "input" and node.attributes[0] == "prev":
            seen = max(seen, 1)
        elif any(_is_all_tokens(graph, arg) for arg in node.args):
            return None
    return seen if seen <= MOST_RECENT else None


def table_bytes(bound: BoundProgram, num_rows: int, vocab_size: int, max_context: int) -> int:
    """Memory that a table takes; see `ProgramTable`."""
    kinds = [(kind, 1) for _, kind in bound.types] + [(kind, _STATES) for kind, _ in bound.graph.states.values()]
    widths = [copies * _width(kind, vocab_size) * DTYPES[kind.kind].itemsize for kind, copies in kinds]
    tokens = max_context if tokens_seen(bound.graph) is None else 2 * MOST_RECENT
    return (num_rows + 1) * (sum(widths) + tokens * torch.int64.itemsize)


def _is_all_tokens(graph: Graph, node: int) -> bool:
    """Whether a node is the whole history, or something as long."""
    source = graph.nodes[node]
    return source.op == "input" and source.attributes[0] in _OF_TOKENS


def _width(kind: Type, vocab_size: int) -> int:
    return 1 if kind.axis is None else vocab_size


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


class ProgramTable:
    """Rows of sequences that run the same program.

    Args:
        bound: The program; of its parameters the types alone.
        num_rows: R.
        vocab_size: V.
        device: Where steps are computed.
        max_context: Tokens of the longest sequence.

    Attributes:
        bound: The program.
        used: [R + 1] bool, rows that run it; the last row is for lanes that do not.
        most_context: Tokens of the longest context that a step may have; None if it may be any.
    """

    def __init__(
        self, bound: BoundProgram, num_rows: int, vocab_size: int, device: torch.device, max_context: int
    ) -> None:
        seen = tokens_seen(bound.graph)
        self.bound = bound
        most = min(max_context, MOST_HISTORY)
        self.most_context = most if seen is None else None
        self._device = device
        self._num_seen = most if seen is None else seen
        self._has_counts = "counts" in bound.graph.inputs
        self._vocab_size = vocab_size
        self._spare = num_rows
        self._program = TorchProgram(bound.graph, vocab_size, device)

        def make(width: int, kind: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_rows + 1, width), dtype=kind, device=device)

        self.used = torch.zeros(num_rows + 1, dtype=torch.bool, device=device)
        self._numbers = make(2, torch.int64)  # stream key and tokens of the prompt
        self._parameters = {name: make(_width(kind, vocab_size), DTYPES[kind.kind]) for name, kind in bound.types}
        self._states = {
            name: make(_STATES * _width(kind, vocab_size), DTYPES[kind.kind]).view((num_rows + 1) * _STATES, -1)
            for name, (kind, _) in bound.graph.states.items()
        }
        # Of some tokens there is room for more than are seen: what is drawn again may already be there.
        self._room = self.most_context or 2 * max(1, self._num_seen)
        self._tokens = make(self._room if self._num_seen else 0, torch.int64)
        self._back = torch.arange(-self._num_seen, 0, device=device)
        self._at = torch.arange(self.most_context or 0, device=device)
        self._full = torch.full((1,), self._num_seen, dtype=torch.int64, device=device)
        self._views = [[self._view(row, parity) for parity in range(_STATES)] for row in range(num_rows)]
        self._held: dict[int, _Held] = {}
        self._rows: frozenset[int] = frozenset()

    # -- within a step, with nothing but the device -----------------------------------------------------------------

    def places(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which lanes run the program [M] bool, and their rows of the table [M] int64, from rows [M] of the state."""
        wide = rows.long()
        mine = self.used[wide]  # row -1, of padding, is the last
        return mine, torch.where(mine, wide, self._spare)

    def values(self, logits: torch.Tensor, places: torch.Tensor, positions: torch.Tensor, context: int) -> BatchValues:
        """What a program reads, for logits [M, V] and positions [M] int64 in contexts of at most so many tokens."""
        numbers = self._numbers[places]
        history, lengths, counts = None, None, None
        if self.most_context is not None:
            history, lengths = self._all_tokens(places, positions, context), positions
            counts = self._counts(history, numbers[:, 1:]) if self._has_counts else None
        elif self._num_seen:
            back = positions[:, None] + self._back
            tokens = self._tokens[places[:, None], back % self._room]
            history, lengths = torch.where(back >= 0, tokens, -1), self._full.expand(len(places))
        before = self._state_places(places, positions - 1)
        return BatchValues(
            lanes=[logits],
            keys=position_keys(numbers[:, 0], positions).contiguous().view(torch.int64).view(-1),
            steps=positions - numbers[:, 1],
            history=history,
            lengths=lengths,
            counts=counts,
            parameters={name: values[places] for name, values in self._parameters.items()},
            state={name: values[before] for name, values in self._states.items()},
        )

    def _all_tokens(self, places: torch.Tensor, positions: torch.Tensor, context: int) -> torch.Tensor:
        """[M, T] int64, -1 beyond each one's own."""
        tokens = self._tokens[:, :context].index_select(0, places)
        return torch.where(self._at[:context] < positions[:, None], tokens, -1)

    def _counts(self, history: torch.Tensor, num_prompts: torch.Tensor) -> torch.Tensor:
        """[M, V] int64, how often each token is in the output."""
        is_output = (self._at[: history.shape[1]] >= num_prompts) & (history >= 0)
        out = torch.zeros((len(history), self._vocab_size), dtype=torch.int64, device=self._device)
        return out.scatter_add_(1, history.clamp_min(0), is_output.long())

    def keep(self, places: torch.Tensor, positions: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        """Writes the state after tokens of some positions."""
        after = self._state_places(places, positions)
        for name, value in state.items():
            self._states[name].index_copy_(0, after, value.contiguous())

    def append(self, places: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Writes tokens [M] int64 of some positions, if the program looks back."""
        if self._num_seen:
            self._tokens.view(-1).index_copy_(0, places * self._room + positions % self._room, tokens)

    def _state_places(self, places: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return places * _STATES + positions % _STATES

    # -- between steps ----------------------------------------------------------------------------------------------

    def sync(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Brings rows up to date before a step; costs nothing on the device where nothing has changed.

        Args:
            rows: Of the lanes.
            lanes: All that run the program in the step, and where they stand.
        """
        fresh = [at for at, row in enumerate(rows) if not self._holds(row, lanes[at].session)]
        if fresh:
            self._take(rows, lanes, fresh)
        if self._rows != frozenset(rows):
            self._rows = frozenset(rows)
            used = np.zeros(self._spare + 1, dtype=np.bool_)
            used[list(rows)] = True
            self.used.copy_(self._sent(used))
        if self._states:
            self._sync_states(rows, lanes)
        if self._num_seen:
            self._sync_tokens(rows, lanes)

    def drawn(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Notes that a step has been started: sessions find their new state here."""
        for row, lane in zip(rows, lanes, strict=True):
            if self._states:
                lane.session.keep(lane.position, self._views[row][lane.position % _STATES])
            held = self._held[row]
            held.tokens_at, held.is_behind = lane.position + 1, True

    def recall(self, row: int, session: ProgramSession, position: int) -> None:
        """Tells a session, which goes on elsewhere, the newest tokens before a position if it may not know them."""
        held = self._held.get(row)
        if held is None or held.session() is not session or not held.is_behind:
            return
        held.tokens_at, held.is_behind = -1, False
        if position > 0:
            newest = (position - 1) % self._room
            session.append(position - 1, self._tokens[row, newest : newest + 1])  # which makes room for all
            places, history = self._token_places(position), session.history(position)
            history[len(history) - len(places) :] = self._tokens[row].index_select(0, places)

    def leave(self) -> None:
        """Gives sessions what is theirs; the table is given up."""
        for row, held in self._held.items():
            session = held.session()
            if session is not None:
                self.recall(row, session, held.tokens_at)

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
        self._numbers.index_copy_(0, index, self._sent(np.array(numbers, dtype=np.int64)))
        for name, kind in self.bound.types:
            dtype = HOST_DTYPES[kind.kind]
            values = [np.atleast_1d(np.asarray(session.bound.parameters[name], dtype)) for session in sessions]
            self._parameters[name].index_copy_(0, index, self._sent(np.stack(values)))

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
            is not self._views[row][(lanes[at].position - 1) % _STATES]
        ]
        if not stale:
            return
        befores = [self._before(rows[at], lanes[at]) for at in stale]
        places = [rows[at] * _STATES + (lanes[at].position - 1) % _STATES for at in stale]
        index = self._sent(np.array(places, dtype=np.int64))
        for name, values in self._states.items():
            values.index_copy_(0, index, torch.cat([before[name] for before in befores]))
        for at in stale:
            position = lanes[at].position - 1
            lanes[at].session.keep(position, self._views[rows[at]][position % _STATES])

    def _before(self, row: int, lane: ProgramLane) -> _View:
        session = lane.session
        if lane.position != session.num_prompt:
            return session.states[lane.position - 1]
        return self._program.first_state({name: self._parameters[name][row : row + 1] for name in self._parameters}, 1)

    def _sync_tokens(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Writes the newest tokens of sessions that have drawn elsewhere."""
        for row, lane in zip(rows, lanes, strict=True):
            held = self._held[row]
            if held.tokens_at in (lane.position, lane.position + 1):  # the latter: drawn again
                continue
            places, history = self._token_places(lane.position), lane.session.history(lane.position)
            self._tokens[row].index_copy_(0, places, history[len(history) - len(places) :])
            held.tokens_at, held.is_behind = lane.position, False

    def _token_places(self, position: int) -> torch.Tensor:
        """Where the newest tokens before a position lie in a row, as many as are seen."""
        return self._sent(np.arange(max(0, position - self._num_seen), position) % self._room)

    def _view(self, row: int, parity: int) -> _View:
        at = row * _STATES + parity
        return {name: values[at : at + 1] for name, values in self._states.items()}

    def _sent(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        host = torch.from_numpy(values)
        return host if self._device.type == "cpu" else host.pin_memory().to(self._device, non_blocking=True)
