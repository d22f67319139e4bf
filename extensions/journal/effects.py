"""What a script does to the world, and is told by it: done once, and told again when the run is gone on with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from extensions.journal.digests import digest_of
from extensions.journal.entries import Begun, Done, Undone
from extensions.journal.gate import Gate
from extensions.journal.journal import Journal, current
from extensions.programs.faults import CODES, RunEnded, code_of, fault, to_fault
from extensions.tools.errors import ToolOutcomeUnknown

T = TypeVar("T")


def value(kind: str, make: Callable[[], T]) -> T:
    """A value that is made anew each time it is asked for, and is the same again in a run that is gone on with.

    Args:
        kind: Names it.
        make: Makes it: plain data.
    """
    call = current()
    if call is None:
        return make()
    key = call.key(kind)
    found = call.journal.done(key, "")
    if found is not None:
        known: T = found.value
        return known
    made = make()
    call.journal.put(Done(key, "", made))
    return made


async def sleep(seconds: float) -> None:
    """Waits; in a run that is gone on with, for what is left."""
    whole_s = max(seconds, 0.0)
    until_s = value("until", lambda: time.time() + whole_s)
    await asyncio.sleep(min(max(until_s - time.time(), 0.0), whole_s))


async def effect(
    kind: str,
    asked: object,
    work: Callable[[], Awaitable[T]],
    *,
    is_once: bool = False,
    waits: bool = False,
    pack: Callable[[T], Any] = lambda made: made,
    unpack: Callable[[Any], T] = lambda data: data,
) -> T:
    """Does something, unless it was done before the run was gone on with: then it tells what came of it.

    Before the run is handed over, what is under way comes to its end and nothing more begins.

    Args:
        kind: Names it.
        asked: What is asked, as plain data.
        work: Does it.
        is_once: It must not happen twice. What was begun and did not come to anything is not begun again.
        waits: It waits for others, and nothing of it has taken place if it is cancelled: it is, before the run is
            handed over.
        pack: Makes plain data of the outcome.
        unpack: Makes the outcome of that.

    Raises:
        ReplayDiverged: It was something else before.
        ToolOutcomeUnknown: It was begun before, and what came of it is not known.
        Exception: What `work` raises, or raised before.
    """
    call = current()
    if call is None:
        return await work()
    journal, digest = call.journal, digest_of(asked)
    key = call.key(kind)
    found = journal.done(key, digest)
    if found is not None:
        if found.error:
            raise told(found.error)
        return unpack(found.value)
    if waits and not is_once:
        return await _done(journal, key, digest, work(), pack)
    while True:
        async with journal.gate.passing():
            if is_once:
                await _begin_once(journal, kind, key, digest)
            if not waits:
                return await _done(journal, key, digest, work(), pack)
            waiting = asyncio.ensure_future(work())
            if await _came_to_something(waiting, journal.gate):
                return await _done(journal, key, digest, waiting, pack)
            journal.put(Undone(key))
        await journal.gate.opened()


async def _begin_once(journal: Journal, kind: str, key: str, digest: str) -> None:
    if journal.begun(key, digest) is not None:
        unknown = ToolOutcomeUnknown(
            f"the server stopped while a {kind} was under way: whether it took place is not known, and it is not "
            "tried again"
        )
        await _note_error(journal, key, digest, unknown)
        raise unknown
    journal.put(Begun(key, digest))
    await journal.commit()


async def _done(journal: Journal, key: str, digest: str, work: Awaitable[T], pack: Callable[[T], Any]) -> T:
    """Waits for it, and writes down what came of it."""
    try:
        made = await work
    except Exception as error:
        await _note_error(journal, key, digest, error)
        raise
    journal.put(Done(key, digest, pack(made)))
    await journal.commit()
    return made


async def _note_error(journal: Journal, key: str, digest: str, error: Exception) -> None:
    if (seen := code_and_message(error)) is not None:
        journal.put(Done(key, digest, None, seen))
        await journal.commit()


async def _came_to_something(waiting: asyncio.Future[Any], gate: Gate) -> bool:
    """Waits for the end of a wait; false if the run is to be handed over before, and it has been given up for that."""
    closing = asyncio.create_task(gate.closed())
    try:
        await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})
        return not waiting.cancelled()
    except asyncio.CancelledError:
        waiting.cancel()
        await asyncio.wait({waiting})
        raise
    finally:
        closing.cancel()


def told(error: tuple[str, ...]) -> Exception:
    """The exception that was raised before."""
    code, message = error
    return fault(code, message) if code in CODES else ValueError(message)


def code_and_message(error: Exception) -> tuple[str, str] | None:
    """What is written down of an error; None for one that ends the run, and is to be met again."""
    seen = None if isinstance(error, RunEnded) else to_fault(error)
    code = None if seen is None else code_of(seen)
    if seen is None or code is None:
        return None
    return code, str(seen).removeprefix(f"{code}: ")
