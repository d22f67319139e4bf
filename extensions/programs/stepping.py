"""Generations that a script steps through, and distributions that it looks at; see the stubs."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from engine.errors import EngineStopped, InvalidRequest
from extensions.programs.faults import RunEnded, fault, invalid
from extensions.programs.generating import Candidate, num_found
from extensions.programs.options import token_ids
from extensions.programs.scope import RunScope

if TYPE_CHECKING:
    from extensions.stepped import Distribution, SteppedGeneration

MAX_STEPS = 1024
"""Tokens that one call of `step` may take."""

NO_TOKEN = -1
"""What `step.token` is once there is none."""


class Choice(NamedTuple):
    """See `Choice` in the stubs."""

    best: int
    probabilities: list[float]


class ScriptDistribution:
    """What the model expects next."""

    def __init__(self, scope: RunScope, distribution: Distribution, *, is_whole: bool) -> None:
        self._scope = scope
        self._distribution = distribution
        self._is_whole = is_whole
        self.omitted_mass = distribution.omitted_mass
        self.entropy = distribution.entropy

    @property
    def candidates(self) -> list[Candidate]:
        """Likeliest first; none of a whole vocabulary, which is in `logprobs`."""
        return [] if self._is_whole else _candidates(self._scope, self._distribution)

    @property
    def logprobs(self) -> list[float]:
        """Of every token of the vocabulary, by id, if all were asked for."""
        return list(self._distribution.logprobs) if self._is_whole else []


class ScriptStep:
    """Where a generation stands."""

    def __init__(
        self,
        scope: RunScope,
        token_id: int | None,
        finish_reason: Literal["stop", "length"] | None,
        distribution: Distribution | None,
    ) -> None:
        self._scope = scope
        self._distribution = distribution
        self.finished = token_id is None
        self.finish_reason = finish_reason
        self.token = NO_TOKEN if token_id is None else token_id
        self.text = "" if token_id is None else scope.text.tokenizer.spelling(token_id).text
        self.entropy = 0.0 if distribution is None else distribution.entropy
        self.omitted_mass = 0.0 if distribution is None else distribution.omitted_mass

    @property
    def candidates(self) -> list[Candidate]:
        """Likeliest first."""
        return [] if self._distribution is None else _candidates(self._scope, self._distribution)


class ScriptGeneration:
    """A generation whose every step the script decides.

    Args:
        scope: The run.
        stepped: The generation.
        settle: Called once it has ended: its context is free again.
        num_pending: Tokens that are computed, or taken from a cache, before the first step.
    """

    def __init__(
        self, scope: RunScope, stepped: SteppedGeneration, settle: Callable[[], None], num_pending: int = 0
    ) -> None:
        self._scope = scope
        self._stepped = stepped
        self._settle = settle
        self._num_pending = num_pending
        self._num_cached = 0
        self._num_counted = 0
        self._turn = asyncio.Lock()
        self._num_known = 0
        self._has_ended = False
        scope.steppers.add(self)

    async def step(self, n: int = 1, *, choose: int | None = None) -> ScriptStep:
        """Goes on to the next token, or to the n-th from here; calls at once take their turns."""
        _check_number(n)
        async with self._turn:
            return await self._step(n, choose)

    async def steps(self, taken: int, n: int = 1, *, choose: int | None = None, choices: int = 0) -> list[ScriptStep]:
        """Goes on as `step` does, and tells of what is known behind that: of the known the script took so many before.

        The calls that are spared by that count as if they had been made: a `step` for each of those taken, and a
        `choose` as often as the script chose what it was shown.
        """
        async with self._turn:
            self._take(taken, _whole(taken, "taken") + _whole(choices, "choices"))
            _check_number(n)
            step = await self._step(n, choose)
            if step.finished:
                return [step]
            scope = self._scope
            # With each step that it knows the script may choose too, and it may go through other generations beside:
            # when it says what it took, a limit must not have been passed.
            left = min(scope.guard.decode_left, scope.guard.calls_left // 2) - scope.num_known
            known = self._stepped.known(max(left // len(scope.steppers) - 1, 0))
            self._know(len(known))
            return [step, *(ScriptStep(scope, one.token_id, None, one.distribution) for one in known)]

    async def take(self, taken: int, choices: int = 0, choose: int | None = None) -> None:
        """The script took so many of the known, has chosen what comes next perhaps, and turns to something else."""
        async with self._turn:
            self._take(taken, _whole(taken, "taken") + _whole(choices, "choices") - 1)
            self._know(0)
            self._count()
            if choose is not None:
                self._choose(choose)

    def settle(self, taken: object, choices: object) -> None:
        """The script has ended, and took so many of the known before; called where the run goes on for a moment.

        What is no such number, and what is said while a call is under way, is left to `aclose`.
        """
        if self._turn.locked():
            return
        with contextlib.suppress(RunEnded, ValueError):
            self._take(taken, _whole(taken, "taken") + _whole(choices, "choices"))
            self._know(0)
            self._count()

    async def choose(self, token: int) -> None:
        """Says which token comes next."""
        async with self._turn:
            self._choose(token)

    async def ban(self, tokens: Sequence[int]) -> None:
        """Forbids tokens for the rest of the generation."""
        banned = token_ids(tokens, "tokens")
        async with self._turn:
            self._stepped.ban(banned)
            self._know(0)

    async def stop(self) -> None:
        """Ends it; a token that was chosen is taken, one that was only shown is not."""
        if not self._has_ended:
            self._know(0)
            await self._stepped.stop()
            await self.aclose()

    async def aclose(self) -> None:
        """Ends the engine's work for it. Idempotent.

        Of a script that can say no more, because it was ended, all that it was given counts: it has had it.
        """
        if not self._has_ended and self._num_known:
            self._stepped.take(self._num_known)
            self._know(0)
        await self._stepped.aclose()
        if not self._has_ended:
            self._has_ended = True
            self._scope.steppers.discard(self)
            self._settle()
            with contextlib.suppress(RunEnded):
                self._count()

    async def _step(self, n: int, choose: int | None) -> ScriptStep:
        if choose is not None:
            self._choose(choose)
        self._know(0)
        try:
            found = await self._stepped.step(n)
        except InvalidRequest as error:
            raise fault("constraint_invalid", error.message) from error
        self._count()
        if found.finish_reason == "abort":
            raise EngineStopped("the engine gave a generation up")
        if found.finish_reason is not None:
            await self.aclose()
        return ScriptStep(self._scope, found.token_id, found.finish_reason, found.distribution)

    def _choose(self, token: int) -> None:
        if isinstance(token, bool) or not isinstance(token, int):
            raise invalid("token must be a token id")
        self._stepped.choose(token)
        self._know(0)

    def _take(self, taken: object, num_calls: int) -> None:
        """Takes so many of the known, and counts calls that were spared."""
        count = _whole(taken, "taken")
        if count > self._num_known:
            raise invalid(f"only {self._num_known} steps are known")
        if num_calls:
            self._scope.guard.count_call(num_calls)
        self._stepped.take(count)
        self._know(self._num_known - count)

    def _know(self, count: int) -> None:
        """So many of the steps behind the one shown are known to the script."""
        self._scope.num_known += count - self._num_known
        self._num_known = count

    def _count(self) -> None:
        usage, guard = self._stepped.usage, self._scope.guard
        num_cached = num_found(usage.num_cached_tokens, usage.num_prompt_tokens, self._num_pending)
        guard.usage.num_cached_tokens += num_cached - self._num_cached
        self._num_cached = num_cached
        num_new, self._num_counted = usage.num_completion_tokens - self._num_counted, usage.num_completion_tokens
        guard.count_decode(num_new)


def _check_number(n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_STEPS:
        raise invalid(f"n must be a whole number from 1 to {MAX_STEPS}")


def _whole(count: object, name: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise invalid(f"{name} must be a whole number from 0 on")
    return count


def _candidates(scope: RunScope, distribution: Distribution) -> list[Candidate]:
    spelling = scope.text.tokenizer.spelling
    return [
        Candidate(token_id, spelling(token_id).text, logprob)
        for token_id, logprob in zip(distribution.token_ids, distribution.logprobs, strict=True)
    ]


def read_top(top: Any, vocab_size: int, *, allows_all: bool) -> int:
    """How many candidates are wanted; -1 for the whole vocabulary.

    Raises:
        ValueError: It is no such number (`invalid_argument`).
    """
    if allows_all and top == "all":
        return -1
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= vocab_size:
        raise invalid(f"top must be a whole number from 1 to {vocab_size}" + (", or 'all'" if allows_all else ""))
    return top


def read_mass(need_mass: Any) -> float:
    """The probability that candidates must have together.

    Raises:
        ValueError: It is none (`invalid_argument`).
    """
    if isinstance(need_mass, bool) or not isinstance(need_mass, int | float) or not 0.0 <= need_mass <= 1.0:
        raise invalid("need_mass must be a number from 0 to 1")
    return float(need_mass)


def chosen(logprobs: Sequence[Sequence[float]]) -> Choice:
    """The likeliest of some continuations, and the probability of each among them."""
    sums = [math.fsum(one) for one in logprobs]
    most = max(sums)
    weights = [math.exp(one - most) for one in sums]
    total = math.fsum(weights)
    return Choice(sums.index(most), [weight / total for weight in weights])
