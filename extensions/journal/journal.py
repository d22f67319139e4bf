"""What a run does, written down as it happens, so that the run can be gone on with after a crash.

A script is deterministic but for what it is told. So the run begins again from the start, in a new process: its calls
must be the same ones, and whatever was written down of their answers is told again instead of being done again. Where
the journal ends, the run goes on. What others see is never ahead of the journal: an effect that must not happen twice
is written down before it begins, and events of the run reach the store with, or after, what led to them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from extensions.errors import ReplayDiverged
from extensions.journal.digests import digest_of
from extensions.journal.entries import Begun, Called, Done, Ended, Entry, Settled
from extensions.journal.gate import Gate
from extensions.journal.replay import Replay
from extensions.programs.faults import RunEnded

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Sink(Protocol):
    """Where entries go. `put` may be called in any thread.

    Attributes:
        gate: Through which effects of the run begin.
    """

    gate: Gate

    @property
    def name(self) -> str:
        """Of the run."""
        ...

    def put(self, entry: Entry) -> None:
        """Takes an entry; in order."""
        ...

    async def commit(self) -> None:
        """Waits until all that was put so far will be there after a crash."""
        ...


class _State:
    """What the journals of a run's programs share.

    Attributes:
        is_over: Nothing more is written down: the run ends.
        recompute: Told how many tokens are computed again, and how many of them a cache has.
    """

    def __init__(self) -> None:
        self.is_over: Callable[[], bool] = lambda: False
        self.recompute: Callable[[int, int], None] = lambda num_tokens, num_cached: None


class Journal:
    """The journal of one program of a run.

    Args:
        sink: Where it is written.
        replay: What was written before.
        prefix: Of a child's; empty for the run's own program.

    Attributes:
        prefix: See above.
    """

    def __init__(self, sink: Sink, replay: Replay | None = None, prefix: str = "") -> None:
        self.prefix = prefix
        self._state = _State()
        self._sink = sink
        self._replay = replay or Replay()
        self._calls = self._replay.calls[prefix]
        self._settled = self._replay.settled[prefix]
        self._num_calls = 0
        self._counting = threading.Lock()

    def follow(self, is_over: Callable[[], bool], recompute: Callable[[int, int], None]) -> None:
        """Says for whom it is kept.

        Args:
            is_over: The run ends: what is ended with it would go on if the run is gone on with.
            recompute: Told how many tokens are computed again, and how many of them a cache has.
        """
        self._state.is_over, self._state.recompute = is_over, recompute

    def freeze(self) -> None:
        """The run ends."""
        self._state.is_over = lambda: True

    def recompute(self, num_tokens: int, num_cached: int) -> None:
        """Tokens of an earlier life are computed again."""
        self._state.recompute(num_tokens, num_cached)

    @property
    def gate(self) -> Gate:
        """Through which effects begin."""
        return self._sink.gate

    @property
    def replay(self) -> Replay:
        """What was written before."""
        return self._replay

    @property
    def name(self) -> str:
        """Names the program, the same whenever the run is gone on with and different for every run."""
        return f"{self._sink.name}{self.prefix}"

    def child(self, key: str) -> Journal:
        """That of a program that the run starts."""
        made = Journal(self._sink, self._replay, f"{key}/")
        made._state = self._state
        return made

    # -- calls of the script ----------------------------------------------------------------------------------------

    def call(self, kind: str, args: object, kwargs: object, *, is_awaited: bool) -> Call:
        """The script calls: counted, and compared with what it called before.

        Args:
            kind: Class and method.
            args: What it gives.
            kwargs: What it gives by name.
            is_awaited: See `Call`.

        Raises:
            ReplayDiverged: That was something else.
        """
        digest = digest_of((args, kwargs))
        with self._counting:
            index = self._num_calls
            self._num_calls += 1
        if index < len(self._calls):
            before = self._calls[index]
            if (before.kind, before.digest) != (kind, digest):
                what = "the same with other arguments" if before.kind == kind else before.kind
                raise ReplayDiverged(f"its call {index} is of {kind}, and was of {what} before")
        else:
            self.put(Called(self.prefix, kind, digest))
        return Call(self, index, is_awaited=is_awaited)

    def next_settled(self) -> int | None:
        """Which call's answer the script was given next; None if that is not known.

        Raises:
            ReplayDiverged: It has not made that call.
        """
        if not self._settled:
            return None
        if self._settled[0] >= self._num_calls:
            raise ReplayDiverged(f"it waits, and had made call {self._settled[0]} before")
        return self._settled.popleft()

    def note_settled(self, index: int) -> None:
        """The script is given an answer."""
        self.put(Settled(self.prefix, index))

    # -- what comes of them -----------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Writes down, unless the run ends."""
        if not self._state.is_over():
            self._sink.put(entry)

    async def commit(self) -> None:
        """See `Sink.commit`.

        Raises:
            RunEnded: The run ends: nothing is written any more, and nothing more must happen.
        """
        if self._state.is_over():
            raise RunEnded
        await self._sink.commit()

    def stop(self, reason: str) -> None:
        """What follows cannot be written down: the run goes on, and cannot be gone on with."""
        self.put(Ended(reason))

    def done(self, key: str, digest: str) -> Done | None:
        """What came of something; None if that is not known.

        Raises:
            ReplayDiverged: Something else was asked.
        """
        found = self._replay.done.get(key)
        if found is not None and found.digest != digest:
            raise ReplayDiverged(f"it asks something else than before ({key})")
        return found

    def begun(self, key: str, digest: str) -> Begun | None:
        """How something was begun; None if it was not, as far as is known.

        Raises:
            ReplayDiverged: Something else was asked.
        """
        found = self._replay.begun.get(key)
        if found is not None and found.digest != digest:
            raise ReplayDiverged(f"it asks something else than before ({key})")
        return found


class Call:
    """One call of a script, while it is answered.

    Attributes:
        journal: Of the program.
        index: Which of its calls.
        is_awaited: The script does nothing else before it has the answer.
    """

    __slots__ = ("_counting", "_counts", "_spare", "index", "is_awaited", "journal")

    def __init__(self, journal: Journal, index: int, *, is_awaited: bool) -> None:
        self.journal = journal
        self.index = index
        self.is_awaited = is_awaited
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._spare: dict[str, str] = {}
        self._counting = threading.Lock()

    @property
    def name(self) -> str:
        """Names it within the run."""
        return f"{self.journal.prefix}{self.index}"

    def key(self, kind: str, digest: str = "") -> str:
        """Names one thing that it leads to; of each kind, in the order in which they begin."""
        if digest and (spare := self._spare.pop(digest, None)) is not None:
            return spare
        with self._counting:
            number = self._counts[kind]
            self._counts[kind] += 1
        return f"{self.name}.{kind}.{number}"

    def give_back(self, key: str, digest: str) -> None:
        """That did not begin, and whoever asks for the same is about to do so again."""
        self._spare[digest] = key

    def run(self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """Calls, so that `current` is this."""
        token = _CALL.set(self)
        try:
            return function(*args, **kwargs)
        finally:
            _CALL.reset(token)

    async def follow(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for work, so that `current` is this in it and in all that it begins."""
        _CALL.set(self)
        return await work


_CALL: ContextVar[Call | None] = ContextVar("wye_call", default=None)


def current() -> Call | None:
    """The call that is answered here; None if no journal is kept."""
    return _CALL.get()


def source_of_output() -> str:
    """Names what gives out text or an event; empty if no journal is kept."""
    call = _CALL.get()
    return "" if call is None else call.name
