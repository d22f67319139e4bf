"""Device programs of running sequences: what each carries from step to step, and what a step makes of them.

Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.drafting.offers import Offer
from engine.programs.binding import BoundProgram
from engine.programs.purposes import VERIFY

OF_HISTORY = frozenset({"history", "places", "prev", "counts"})
"""What a program reads of the tokens before."""

_GROWTH = 256
"""Tokens by which the room for a history grows."""


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
        kind: Sessions of one kind are computed together.
        judges: It judges a guess.
        is_plain: It draws one sequence's tokens from its logits, and tells nothing else.
        is_joint: It reads more than the logits of the place that it draws for.
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
        self.is_joint = num_lanes > 1 or (num_rows > 0 and not self.judges)
        self.is_plain = not (self.is_joint or self.judges or num_rows or bound.graph.probes)
        self.kind = f"{bound.digest} {bound.types} {num_rows > 0}"  # a string: its hash is worked out once
        # The tokens of a guess are output as far as they stand.
        self.num_prompt = num_prompt - (num_rows - 1 if self.judges and num_rows else 0)
        self.offers = offers
        self.guess: Sequence[int] = ()
        self.num_lanes = num_lanes
        self.num_rows = num_rows
        self.rows: dict[int, torch.Tensor] = {}
        self.states: dict[int, Mapping[str, torch.Tensor]] = {}
        self._tokens = torch.zeros(0, dtype=torch.int64)
        self._host: npt.NDArray[np.int64] | None = None  # the same memory, where the host can reach it
        self._begun: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._waits_for: torch.device | None = None

    def collect(self, number: int, logits: torch.Tensor) -> None:
        """Keeps the logits [any, V] of rows of its pass, from a number on, until it draws."""
        self.rows |= {number + at: row for at, row in enumerate(logits.clone())}

    def begin(self, token_ids: Sequence[int], room: int, device: torch.device) -> None:
        """Takes down the history when the sequence enters, or enters again."""
        if self.judges and self.num_rows:
            self.guess = list(token_ids[len(token_ids) - self.num_rows + 1 :])
        if not self.bound.graph.inputs & OF_HISTORY:
            return
        host = np.zeros(len(token_ids) + min(room, _GROWTH), dtype=np.int64)
        host[: len(token_ids)] = token_ids
        self._begun = host[: len(token_ids)]
        if device.type == "cpu":
            self._hold(torch.from_numpy(host))
        else:  # most programs never ask for it there
            self._tokens, self._host, self._waits_for = torch.zeros(0, dtype=torch.int64), host, device

    def history(self, length: int) -> torch.Tensor:
        """The first `length` tokens: [length] int64."""
        self._bring()
        return self._tokens[:length]

    def begun(self, length: int) -> npt.NDArray[np.int64] | None:
        """The first `length` tokens if the sequence entered with them or more: [length] int64, on the host."""
        return self._begun[:length] if length <= len(self._begun) else None

    def newest(self, length: int) -> int:
        """The last of the first `length` tokens, at least one; on a CPU, after `begin`."""
        assert self._host is not None
        return int(self._host[length - 1])

    def append(self, position: int, token: torch.Tensor) -> None:
        """Writes the token of a position, [1] int64 on the device."""
        if self._reach(position):
            self._tokens[position : position + 1] = token

    def append_known(self, position: int, token_id: int) -> None:
        """The same on a CPU, without torch."""
        if self._reach(position):
            assert self._host is not None
            self._host[position] = token_id

    def _reach(self, position: int) -> bool:
        """Makes room for the token of a position; False if nobody reads the history."""
        self._bring()
        size = len(self._tokens)
        if size == 0:
            return False
        if position >= size:
            more = torch.zeros(position + _GROWTH, dtype=torch.int64, device=self._tokens.device)
            more[:size] = self._tokens
            self._hold(more)
        return True

    def _bring(self) -> None:
        """Sends a history to the device that it is wanted on, without waiting."""
        if self._waits_for is None:
            return
        device, self._waits_for = self._waits_for, None
        assert self._host is not None
        self._hold(torch.from_numpy(self._host).pin_memory().to(device, non_blocking=True))

    def _hold(self, tokens: torch.Tensor) -> None:
        self._tokens = tokens
        self._host = tokens.numpy() if tokens.device.type == "cpu" else None

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


class ProgramLane(msgspec.Struct, frozen=True, eq=False, gc=False):
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
