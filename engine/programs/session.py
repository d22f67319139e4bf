"""Device programs of running sequences: what each carries from step to step, and one computation for those alike.

Letters: R rows that run programs in a step, V vocabulary, T longest history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

import numpy as np
import numpy.typing as npt
import torch

from engine.drafting.offers import Offer
from engine.programs.binding import BoundProgram, Parameter
from engine.programs.purposes import VERIFY
from engine.programs.reference import DTYPES
from engine.programs.torch_form import BatchValues, TorchProgram
from engine.sampling.random import position_keys

_OF_HISTORY = frozenset({"history", "places", "prev", "counts"})
"""What a program reads of the tokens before."""

_OF_ALL_HISTORY = _OF_HISTORY - {"prev"}
"""What it reads of more than the newest one."""

_GROWTH = 256
"""Tokens by which the room for a history grows."""

MAX_COMPILED = 128
"""Programs that are kept ready; the one that was used longest ago goes first."""


class ProgramSession:
    """One sequence's program: its parameters, and its state after the last two steps.

    Two, because a step that has been handed to the device can be void, when its sequence yields its pages: the
    sequence then draws the same position again, from the state before.

    Args:
        bound: The program with its parameters.
        stream_key: Names the sequence's random stream, see `engine.sampling.random.stream_key`.
        num_prompt: Tokens of the prompt: what follows is counted.
        num_lanes: Contexts that it draws one token for; history and position are the first one's.
        num_rows: Rows of a pass that are its lanes instead of the ends of those contexts; 0 if there is no pass.
        offers: Of a pass over a guess: what its tokens were drawn from, if they were.

    Attributes:
        rows: Logits of those rows, as far as they are computed: [V] by number.
        guess: Of a pass over a guess: its tokens, which are those of its rows but for the first.
    """

    def __init__(
        self,
        bound: BoundProgram,
        stream_key: int,
        num_prompt: int,
        num_lanes: int = 1,
        num_rows: int = 0,
        offers: Sequence[Offer | None] = (),
    ) -> None:
        self.bound = bound
        self.stream_key = stream_key
        self.judges = bound.function == VERIFY
        # The tokens of a guess are output as far as they stand.
        self.num_prompt = num_prompt - (num_rows - 1 if self.judges and num_rows else 0)
        self.offers = offers
        self.guess: Sequence[int] = ()
        self.num_lanes = num_lanes
        self.num_rows = num_rows
        self.rows: dict[int, torch.Tensor] = {}
        self.states: dict[int, Mapping[str, torch.Tensor]] = {}
        self._tokens = torch.zeros(0, dtype=torch.int64)

    @property
    def kind(self) -> tuple[object, ...]:
        """Sessions of one kind are computed together."""
        return (self.bound.digest, self.bound.types, self.num_rows > 0)

    @property
    def is_joint(self) -> bool:
        """It reads more than the logits of the place that it draws for."""
        return self.num_lanes > 1 or (self.num_rows > 0 and not self.judges)

    def collect(self, number: int, logits: torch.Tensor) -> None:
        """Keeps the logits [any, V] of rows of its pass, from a number on, until it draws."""
        self.rows |= {number + at: row for at, row in enumerate(logits.clone())}

    def begin(self, token_ids: Sequence[int], room: int, device: torch.device) -> None:
        """Takes down the history when the sequence enters, or enters again."""
        if self.judges and self.num_rows:
            self.guess = list(token_ids[len(token_ids) - self.num_rows + 1 :])
        if not self.bound.graph.inputs & _OF_HISTORY:
            return
        host = np.zeros(len(token_ids) + min(room, _GROWTH), dtype=np.int64)
        host[: len(token_ids)] = token_ids
        self._tokens = torch.from_numpy(host).to(device)

    def history(self, length: int) -> torch.Tensor:
        """The first `length` tokens: [length] int64."""
        return self._tokens[:length]

    def append(self, position: int, token: torch.Tensor) -> None:
        """Writes the token of a position, [1] int64 on the device."""
        if len(self._tokens) == 0:
            return
        if position >= len(self._tokens):
            more = torch.zeros(position + _GROWTH, dtype=torch.int64, device=self._tokens.device)
            more[: len(self._tokens)] = self._tokens
            self._tokens = more
        self._tokens[position : position + 1] = token

    def keep(self, position: int, state: Mapping[str, torch.Tensor]) -> None:
        """Takes down the state after the token of a position."""
        self.states = {at: kept for at, kept in self.states.items() if at == position - 1}
        self.states[position] = state


@dataclass(frozen=True, slots=True)
class Guess:
    """What a program that judges guesses is told of the place that it draws for.

    Attributes:
        draft: The token that is guessed; -1 if none is.
        target: [V] float32, what the token would be drawn from without it; None where that is not read.
        offered: [V] float32, what it was drawn from; None where that is not read.
    """

    draft: int
    target: torch.Tensor | None
    offered: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ProgramLane:
    """One draw of a program in this step.

    Attributes:
        session: Of the sequence, or of several that draw together.
        row: Its row of the logits.
        position: Of the token to draw.
        others: Rows of its further lanes.
        guess: For a program that judges one.
    """

    session: ProgramSession
    row: int
    position: int
    others: Sequence[int] = ()
    guess: Guess | None = None

    def row_of(self, lane: int) -> int:
        """Row of the logits of one of its lanes."""
        return self.others[lane - 1] if lane else self.row


@dataclass(slots=True)
class Drawn:
    """What the programs of a step came to. Whoever finishes the draws tells the sessions, see `ProgramSession.append`.

    Attributes:
        tokens: [lanes] int64, -1 where a program returned no token of the vocabulary, or did not draw.
        places: Lanes whose token is there.
        scores: Lanes whose token is to be drawn from softmax(scores) [lanes of it, V] float32, at their positions.
        probes: Lanes and what their programs noted down, by name: [lanes of it, any].
    """

    tokens: torch.Tensor
    places: list[int] = field(default_factory=list)
    scores: list[tuple[Sequence[int], torch.Tensor]] = field(default_factory=list)
    probes: list[tuple[Sequence[int], Mapping[str, torch.Tensor]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Steady:
    """What stays as it is while the same sequences draw together.

    Attributes:
        sessions: Those of the lanes, in their order.
        streams: [R] int64, their random streams.
        prompts: [R] int64, tokens before their output.
        parameters: Of their programs, by name: [R, 1] or [R, V].
    """

    sessions: Sequence[ProgramSession]
    streams: torch.Tensor
    prompts: torch.Tensor
    parameters: Mapping[str, torch.Tensor]

    def is_of(self, sessions: Sequence[ProgramSession]) -> bool:
        """Whether it holds for these."""
        return len(sessions) == len(self.sessions) and all(map(is_, sessions, self.sessions))


class ProgramRunner:
    """Computes the programs of a step; owns their compiled forms. Used by the device's thread alone.

    Args:
        vocab_size: V.
        device: Where the logits lie.
        team: Threads for native passes, see `engine.native.passes`.
    """

    def __init__(self, vocab_size: int, device: torch.device, team: object | None = None) -> None:
        self._team = team
        self._vocab_size = vocab_size
        self._device = device
        self._compiled: dict[tuple[object, ...], TorchProgram] = {}
        self._steady: dict[tuple[object, ...], _Steady] = {}

    def let_go(self) -> None:
        """Keeps nothing of sequences any more: none is left."""
        self._steady = {}

    def run(self, logits: torch.Tensor, lanes: Sequence[ProgramLane], *, defer: bool = False) -> Drawn:
        """Draws a token for each lane, or says what to draw it from.

        Args:
            logits: [any, V] float32; what must not be drawn is -inf.
            lanes: Those that draw by a program.
            defer: Leave draws to the caller where that can be; scores may then be written over the logits.
        """
        drawn = Drawn(torch.full((len(lanes),), -1, dtype=torch.int64, device=self._device))
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, lane in enumerate(lanes):
            groups.setdefault(lane.session.kind, []).append(place)
        self._steady = {kind: steady for kind, steady in self._steady.items() if kind in groups}
        for kind, places in groups.items():
            self._run_alike(kind, logits, [lanes[place] for place in places], places, drawn, defer)
        return drawn

    def _run_alike(
        self,
        kind: tuple[object, ...],
        logits: torch.Tensor,
        lanes: Sequence[ProgramLane],
        places: Sequence[int],
        drawn: Drawn,
        defer: bool,
    ) -> None:
        program = self._ready(kind, lanes[0].session.bound)
        values = self._values(program, logits, lanes)
        graph = lanes[0].session.bound.graph
        keeps_more = bool(graph.updates or graph.probes)  # what it keeps may be the logits themselves
        if defer and values.lanes[0] is logits and logits.is_contiguous() and not keeps_more:
            values = replace(values, room=logits)
        result = program.run(values, defer=defer)
        state = {name: _own(value, logits) for name, value in result.state.items()}
        for at, lane in enumerate(lanes if state else ()):
            lane.session.keep(lane.position, {name: value[at : at + 1] for name, value in state.items()})
        if result.probes:
            drawn.probes.append((places, {name: _own(value, logits) for name, value in result.probes.items()}))
        if result.tokens is None:
            assert result.scores is not None
            drawn.scores.append((places, result.scores))
            return
        inside = (result.tokens >= 0) & (result.tokens < self._vocab_size)
        tokens = torch.where(inside, result.tokens, -1)
        drawn.tokens[list(places)] = tokens
        drawn.places += places

    def _ready(self, kind: tuple[object, ...], bound: BoundProgram) -> TorchProgram:
        found = self._compiled.pop(kind, None)
        if found is None:
            found = TorchProgram(bound.graph, self._vocab_size, self._device, team=self._team)
            while len(self._compiled) >= MAX_COMPILED:
                del self._compiled[next(iter(self._compiled))]
        self._compiled[kind] = found  # last: used most recently
        return found

    def _values(self, program: TorchProgram, logits: torch.Tensor, lanes: Sequence[ProgramLane]) -> BatchValues:
        graph = lanes[0].session.bound.graph
        inputs = graph.inputs
        steady = self._steady_of(lanes)
        positions = self._integers([lane.position for lane in lanes])
        history, lengths = None, positions
        if inputs & _OF_ALL_HISTORY:
            history = self._histories(lanes)
        elif inputs & _OF_HISTORY:  # the newest token alone is a history for whom it is all that is read
            history = torch.stack([lane.session.history(lane.position)[-1:] for lane in lanes])
            lengths = torch.ones_like(positions)
        return BatchValues(
            lanes=[self._lane(logits, lanes, at) for at in range(max(graph.num_lanes, 1))],
            keys=position_keys(steady.streams, positions).contiguous().view(torch.int64).view(-1),
            steps=positions - steady.prompts,
            history=history,
            lengths=lengths,
            counts=self._counts(lanes) if "counts" in inputs else None,
            parameters=steady.parameters,
            state=self._states(program, lanes, steady.parameters),
            others=self._others([lane.guess for lane in lanes if lane.guess is not None], inputs),
        )

    def _steady_of(self, lanes: Sequence[ProgramLane]) -> _Steady:
        sessions = [lane.session for lane in lanes]
        kind = sessions[0].kind
        found = self._steady.get(kind)
        if found is None or not found.is_of(sessions):
            found = self._steady[kind] = _Steady(
                sessions,
                self._integers([session.stream_key for session in sessions]),
                self._integers([session.num_prompt for session in sessions]),
                {
                    name: self._stacked([session.bound.parameters[name] for session in sessions], DTYPES[one.kind])
                    for name, one in sessions[0].bound.types
                },
            )
        return found

    def _others(self, guesses: Sequence[Guess], inputs: frozenset[str]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        if "draft" in inputs:
            found["draft"] = self._integers([guess.draft for guess in guesses])[:, None]
        for name, values in (("p", [one.target for one in guesses]), ("q", [one.offered for one in guesses])):
            if name in inputs:
                found[name] = torch.stack([value for value in values if value is not None])
        return found

    def _lane(self, logits: torch.Tensor, lanes: Sequence[ProgramLane], number: int) -> torch.Tensor:
        """[R, V], the logits of one lane of each."""
        if lanes[0].session.num_rows and lanes[0].guess is None:
            return torch.stack([lane.session.rows[number] for lane in lanes])
        rows = [lane.row_of(number) for lane in lanes]
        are_all = len(rows) == len(logits) and all(row == at for at, row in enumerate(rows))
        return logits if are_all else logits[self._integers(rows)]

    def _histories(self, lanes: Sequence[ProgramLane]) -> torch.Tensor:
        """[R, T] int64, -1 beyond each one's own."""
        out = torch.full((len(lanes), max(lane.position for lane in lanes)), -1, dtype=torch.int64, device=self._device)
        for row, lane in zip(out, lanes, strict=True):
            row[: lane.position] = lane.session.history(lane.position)
        return out

    def _counts(self, lanes: Sequence[ProgramLane]) -> torch.Tensor:
        """[R, V] int64, how often each token is in the output."""
        out = torch.zeros((len(lanes), self._vocab_size), dtype=torch.int64, device=self._device)
        for row, lane in zip(out, lanes, strict=True):
            output = lane.session.history(lane.position)[lane.session.num_prompt :]
            row.scatter_add_(0, output, torch.ones_like(output))
        return out

    def _states(
        self, program: TorchProgram, lanes: Sequence[ProgramLane], parameters: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not lanes[0].session.bound.graph.states:
            return {}
        first = program.first_state(parameters, len(lanes))
        before = [
            {name: value[at : at + 1] for name, value in first.items()}
            if lane.position == lane.session.num_prompt
            else lane.session.states[lane.position - 1]
            for at, lane in enumerate(lanes)
        ]
        return {name: torch.cat([state[name] for state in before]) for name in first}

    def _stacked(self, values: Sequence[Parameter], dtype: type[np.generic]) -> torch.Tensor:
        return self._sent(np.stack([np.atleast_1d(np.asarray(value, dtype)) for value in values]))

    def _integers(self, values: Sequence[int]) -> torch.Tensor:
        return self._sent(np.array(values, dtype=np.int64))

    def _sent(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        host = torch.from_numpy(values)
        return host if self._device.type == "cpu" else host.pin_memory().to(self._device, non_blocking=True)


def _own(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The value in memory of its own: that of the logits is written over, by what is drawn and by the next step."""
    is_shared = value.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()
    return value.clone() if is_shared else value
