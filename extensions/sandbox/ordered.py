"""A script whose journal is kept: it is told one thing after the other, in an order that can be repeated.

What a script does depends on nothing but what it is told, and when: of several answers that it waits for at the same
time, which is there first. Here each answer is given by itself, and the order is written down; a run that is gone on
with is given them in the order of before. Clocks, sleep and chance inside the sandbox are asked of the server too.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import time
from collections.abc import Callable
from typing import Any, Literal

import pydantic_monty as monty

from extensions.journal.effects import sleep, value
from extensions.journal.journal import Call, Journal
from extensions.programs.faults import RunEnded

_CLOCKS = frozenset({"time.time", "datetime.now", "date.today"})
_SLEEPS = frozenset({"time.sleep", "asyncio.sleep", "system.sleep"})


class CallOrder:
    """Who may be told something next. The script runs in turns: each ends with a call, or with a wait for answers.

    Args:
        journal: Of the program.
        fail: Ends the run with an error.

    Attributes:
        journal: See above.
    """

    def __init__(self, journal: Journal, fail: Callable[[Exception], None]) -> None:
        self.journal = journal
        self._fail = fail
        self._is_awaited = False
        self._answered: dict[int, asyncio.Future[None]] = {}
        self._changed = asyncio.Event()

    def begin(self, kind: str, args: object, kwargs: object) -> Call:
        """The script calls. May be called in any thread.

        Raises:
            RunEnded: Something else than before: the run ends.
        """
        try:
            return self.journal.call(kind, args, kwargs, is_awaited=self._is_awaited)
        except Exception as error:
            self._fail(error)
            raise RunEnded from None

    async def turn(self, call: Call) -> None:
        """The answer to a call is there; waits until the script may be told."""
        if call.is_awaited:
            return
        released = asyncio.get_running_loop().create_future()
        self._answered[call.index] = released
        self._changed.set()
        await released

    async def feed(
        self,
        session: monty.AsyncMontySession,
        code: str,
        inputs: dict[str, Any],
        on_print: Callable[[Literal["stdout", "stderr"], str], None],
    ) -> Any:
        """Runs a script to its end, and returns its last value. Arguments and errors are those of `feed_run`."""
        snapshot: monty.AsyncSnapshot = await session.feed_start(
            code, inputs=inputs, print_callback=on_print, os=self.answer
        )
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.AsyncFutureSnapshot):
                await self._release_one()
            self._is_awaited = isinstance(snapshot, monty.AsyncFunctionSnapshot) and snapshot.allow_eager_await
            snapshot = await snapshot.resume_auto()
        return snapshot.output

    async def _release_one(self) -> None:
        try:
            index = self.journal.next_settled()
        except Exception as error:
            self._fail(error)
            raise RunEnded from None
        is_known = index is not None
        while index not in self._answered:
            if not is_known and self._answered:
                index = next(iter(self._answered))
                break
            self._changed.clear()
            await self._changed.wait()
        assert index is not None
        if not is_known:
            self.journal.note_settled(index)
        self._answered.pop(index).set_result(None)

    # -- what the sandbox itself asks for ---------------------------------------------------------------------------

    def answer(self, *, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_async: bool, **_: Any) -> Any:
        """Answers what the sandbox asks of its host: clocks and sleep, nothing else."""
        if name in _CLOCKS:
            call = self.begin(f"os.{name}", (), {})
            now_s = call.run(value, ("clock", time.time), {})
            return _as_asked(name, now_s, args)
        if name in _SLEEPS:
            call = self.begin(f"os.{name}", args, {})
            return self._sleep(call, float(args[0]))
        return monty.NOT_HANDLED

    async def _sleep(self, call: Call, seconds: float) -> None:
        await call.follow(sleep(seconds))
        await self.turn(call)


def policy(run_id: str) -> monty.OSPolicy:
    """What the sandbox asks of the server, for one run."""
    seed = hashlib.sha256(b"wye random\0" + run_id.encode()).digest()
    return {"sleep": "call_host", "datetime": "call_host", "random_start": {"seed": seed}}


def _as_asked(name: str, now_s: float, args: tuple[Any, ...]) -> Any:
    zone = next((one for one in args if isinstance(one, datetime.tzinfo)), None)
    if name == "datetime.now":
        # Of a zone of its own the sandbox knows nothing but UTC.
        moment = datetime.datetime.fromtimestamp(now_s, datetime.UTC if zone is None else zone)
        return moment.replace(tzinfo=None) if zone is None else moment
    if name == "date.today":
        return datetime.datetime.fromtimestamp(now_s, datetime.UTC).date()
    return now_s
