"""What a script does to the world, and is told by it: done once, and told again when the run is gone on with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from extensions.journal.digests import digest_of
from extensions.journal.entries import Begun, Done
from extensions.journal.journal import current
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
    pack: Callable[[T], Any] = lambda made: made,
    unpack: Callable[[Any], T] = lambda data: data,
) -> T:
    """Does something, unless it was done before the run was gone on with: then it tells what came of it.

    Args:
        kind: Names it.
        asked: What is asked, as plain data.
        work: Does it.
        is_once: It must not happen twice. What was begun and did not come to anything is not begun again.
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
    try:
        if is_once:
            await _begin_once(kind, key, digest)
        made = await work()
    except Exception as error:
        if (seen := code_and_message(error)) is not None:
            journal.put(Done(key, digest, None, seen))
            await journal.commit()
        raise
    journal.put(Done(key, digest, pack(made)))
    await journal.commit()
    return made


async def _begin_once(kind: str, key: str, digest: str) -> None:
    call = current()
    assert call is not None
    if call.journal.begun(key, digest) is not None:
        raise ToolOutcomeUnknown(
            f"the server stopped while a {kind} was under way: whether it took place is not known, and it is not "
            "tried again"
        )
    call.journal.put(Begun(key, digest))
    await call.journal.commit()


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
