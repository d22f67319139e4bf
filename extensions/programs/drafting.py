"""Generations whose tokens the script guesses ahead: the engine verifies, and waits for the next guess meanwhile."""

from __future__ import annotations

import array
import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from engine.request import Proposal
from extensions.programs.faults import invalid
from extensions.programs.generating import Completion
from extensions.programs.options import token_ids
from extensions.programs.scope import RunScope


class Waiting(Protocol):
    """A request that waits for a guess."""

    token_ids: list[int]

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """Gives it."""
        ...


class Drafted(NamedTuple):
    """See `Drafted` in the stubs."""

    tokens: list[int]
    wanted: int


class ScriptDrafting:
    """A generation that waits for guesses; see `Drafting` in the stubs.

    Attributes:
        history: What it began with.

    Args:
        scope: The run.
    """

    def __init__(self, scope: RunScope) -> None:
        self.history: list[int] = []
        self._scope = scope
        self._waiting: Waiting | None = None
        self._wanted = 0
        self._num_told = 0
        self._changed = asyncio.Event()
        self._is_asked = False
        self._task: asyncio.Task[Completion]

    @property
    def is_waiting(self) -> bool:
        """It is the script's turn to guess."""
        return self._waiting is not None and not self._is_asked and not self._task.done()

    async def begin(self, answer: Coroutine[Any, Any, Completion]) -> None:
        """Starts what generates and calls `note`, and waits for its first token.

        Raises:
            EngineError: The engine refuses it.
            ValueError: The context cannot go on.
        """
        self._task = self._scope.beside(answer)
        self._task.add_done_callback(lambda _: self._changed.set())
        await self._changed.wait()
        if self._task.done():
            await self._task

    def note(self, waiting: Waiting, wanted: int) -> None:
        """The engine waits for a guess of so many tokens at most."""
        self._waiting, self._wanted = waiting, wanted
        self._changed.set()

    async def next(
        self, tokens: Sequence[int] = (), q: Sequence[Mapping[int, float]] | Mapping[int, float] | None = None
    ) -> Drafted:
        """Gives a guess where one is awaited, and waits until the next is, or the end."""
        ids = token_ids(tokens, "tokens")
        proposals = read_proposals(ids, q, self._scope.engine.info.vocab_size)
        if self._is_asked:
            raise invalid("the generation goes on already: await that first")
        self._is_asked = True
        try:
            await self._go_on(ids, proposals)
        finally:
            self._is_asked = False
        if self._task.done():
            return Drafted(self._new((await self.completion()).tokens), 0)
        assert self._waiting is not None
        return Drafted(self._new(self._waiting.token_ids), self._wanted)

    async def completion(self) -> Completion:
        """What came of it."""
        if not self._task.done():
            raise invalid("the generation has not ended: call next() until nothing is wanted")
        if self._task.cancelled():
            raise invalid("the generation was stopped")
        return await self._task

    async def stop(self) -> None:
        """Ends it before its end; the history has what was generated."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _go_on(self, ids: list[int], proposals: list[Proposal]) -> None:
        """Gives a guess, but for the first time, and waits for the next thing that happens."""
        waiting = self._waiting
        if waiting is not None and self._num_told and not self._task.done():
            self._changed.clear()
            waiting.guess(ids[: self._wanted], proposals[: self._wanted])
        await self._changed.wait()

    def _new(self, tokens: Sequence[int]) -> list[int]:
        new = list(tokens[self._num_told :])
        self._num_told += len(new)
        return new


def read_proposals(ids: Sequence[int], q: object, vocab_size: int) -> list[Proposal]:
    """What a guess was drawn from: for each token, or for all of them, probabilities by token id; none if it was not.

    Raises:
        ValueError: They are none, or a token cannot have been drawn from them (`invalid_argument`).
    """
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise invalid(f"tokens must be between 0 and {vocab_size - 1}")
    if q is None:
        return []
    if isinstance(q, Mapping):
        return [_proposal(token_id, q, vocab_size, "q") for token_id in ids]
    if isinstance(q, str | bytes) or not isinstance(q, Sequence) or len(q) != len(ids):
        raise invalid("q must be a dict of probabilities by token id, or a list with one for each token")
    pairs = zip(ids, q, strict=True)
    return [_proposal(token_id, one, vocab_size, f"q[{at}]") for at, (token_id, one) in enumerate(pairs)]


def _proposal(token_id: int, weights: object, vocab_size: int, name: str) -> Proposal:
    if not isinstance(weights, Mapping):
        raise invalid(f"{name} must be a dict of probabilities by token id")
    for key, value in weights.items():
        if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key < vocab_size:
            raise invalid(f"{name} has a key that is no token id between 0 and {vocab_size - 1}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            raise invalid(f"{name} has a probability that is no number from 0 on")
    if not weights.get(token_id):
        raise invalid(f"{name}: token {token_id} cannot have been drawn from it")
    ids, values = array.array("i", weights), array.array("d", weights.values())
    return Proposal(ids.tobytes(), values.tobytes())
