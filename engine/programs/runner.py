"""Device programs of a step: one computation for those alike.

Letters: R rows that run programs in a step, V vocabulary, T longest history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.programs.binding import BoundProgram, Parameter
from engine.programs.reference import DTYPES
from engine.programs.session import OF_HISTORY, Drawn, Guess, ProgramLane, ProgramSession
from engine.programs.torch_form import BatchValues, TorchProgram

_OF_ALL_HISTORY = OF_HISTORY - {"prev"}
"""What it reads of more than the newest one."""

MAX_COMPILED = 128
"""Programs that are kept ready; the one that was used longest ago goes first."""


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


class _Alike(NamedTuple):
    """Lanes of one kind, and their places among all."""

    program: TorchProgram
    lanes: Sequence[ProgramLane]
    places: Sequence[int]
    values: BatchValues


class PreparedDraws(NamedTuple):
    """Draws of a step of which nothing is missing but its logits."""

    num_lanes: int
    groups: Sequence[_Alike]


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
        self._compiled: dict[str, TorchProgram] = {}
        self._steady: dict[str, _Steady] = {}
        self._nothing = torch.full((1,), -1, dtype=torch.int64, device=device)

    def let_go(self) -> None:
        """Keeps nothing of sequences any more: none is left."""
        self._steady = {}

    def run(self, logits: torch.Tensor, lanes: Sequence[ProgramLane], *, defer: bool = False) -> Drawn:
        """Draws a token for each lane, or says what to draw it from.

        Args:
            logits: [any, V] float32; what must not be drawn is -inf.
            lanes: Those that draw by a program.
            defer: Leave draws to the caller where they would take longer here; scores may then be written over the
                logits.
        """
        return self.draw(logits, self.prepare(lanes), defer=defer)

    def prepare(self, lanes: Sequence[ProgramLane]) -> PreparedDraws:
        """Has ready all that `draw` needs besides logits.

        Args:
            lanes: Those that will draw by a program, next of all.
        """
        places: dict[str, list[int]] = {}
        for place, lane in enumerate(lanes):
            places.setdefault(lane.session.kind, []).append(place)
        if not places.keys() >= self._steady.keys():
            self._steady = {kind: steady for kind, steady in self._steady.items() if kind in places}
        groups = []
        for kind, some in places.items():
            alike = [lanes[place] for place in some]
            program = self._ready(kind, alike[0].session.bound)
            groups.append(_Alike(program, alike, some, self._values(program, alike)))
        return PreparedDraws(len(lanes), groups)

    def draw(self, logits: torch.Tensor, prepared: PreparedDraws, *, defer: bool = False) -> Drawn:
        """What `run` does, with what was prepared."""
        drawn = Drawn(self._nothing.expand(prepared.num_lanes))
        if len(prepared.groups) > 1:  # else there is nothing to write between others
            drawn.tokens = drawn.tokens.clone()
        for alike in prepared.groups:
            self._draw_alike(alike, logits, drawn, defer)
        return drawn

    def _draw_alike(self, alike: _Alike, logits: torch.Tensor, drawn: Drawn, defer: bool) -> None:
        program, lanes, places, values = alike
        graph = lanes[0].session.bound.graph
        read = [self._lane(logits, lanes, at) for at in range(max(graph.num_lanes, 1))]
        keeps_more = bool(graph.updates or graph.probes)  # what it keeps may be the logits themselves
        may_write = defer and read[0] is logits and logits.is_contiguous() and not keeps_more
        values = msgspec.structs.replace(values, lanes=read, room=logits if may_write else None)
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
        tokens = result.tokens if result.is_drawn else _inside(result.tokens, self._vocab_size)
        if len(places) == drawn.tokens.shape[0]:
            drawn.tokens = tokens
        else:
            drawn.tokens[list(places)] = tokens
        drawn.places += places

    def _ready(self, kind: str, bound: BoundProgram) -> TorchProgram:
        found = self._compiled.pop(kind, None)
        if found is None:
            found = TorchProgram(bound.graph, self._vocab_size, self._device, team=self._team)
            while len(self._compiled) >= MAX_COMPILED:
                del self._compiled[next(iter(self._compiled))]
        self._compiled[kind] = found  # last: used most recently
        return found

    def _values(self, program: TorchProgram, lanes: Sequence[ProgramLane]) -> BatchValues:
        """All but what the lanes read."""
        inputs = lanes[0].session.bound.graph.inputs
        steady = self._steady_of(lanes)
        positions = self._integers([lane.position for lane in lanes])
        history, newest = None, None
        if inputs & _OF_ALL_HISTORY:
            history = self._histories(lanes)
        elif inputs & OF_HISTORY:
            newest = self._newest(lanes)
        return BatchValues(
            lanes=(),
            keys=program.position_keys(steady.streams, positions) if "key" in inputs else None,
            steps=positions - steady.prompts if "step" in inputs else None,
            history=history,
            lengths=positions,
            newest=newest,
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
        return logits if rows == list(range(logits.shape[0])) else logits[self._integers(rows)]

    def _newest(self, lanes: Sequence[ProgramLane]) -> torch.Tensor:
        """[R, 1] int64."""
        if self._device.type == "cpu":
            return torch.from_numpy(np.array([[lane.session.newest(lane.position)] for lane in lanes], dtype=np.int64))
        return torch.stack([lane.session.history(lane.position)[-1:] for lane in lanes])

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


def _inside(tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[R] int64, -1 for what is no token of the vocabulary."""
    return torch.where((tokens >= 0) & (tokens < vocab_size), tokens, -1)


def _own(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The value in memory of its own: that of the logits is written over, by what is drawn and by the next step."""
    is_shared = value.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()
    return value.clone() if is_shared else value
