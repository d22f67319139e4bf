"""What a run gives out and its journal, on their way to the store; then how it ended, or that others go on with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from gateway.errors import StoreUnavailable
from gateway.runs.endings import Ending
from gateway.runs.events import ENDS
from gateway.runs.journal import RunJournal
from gateway.runs.outbox import Outbox
from gateway.state.run_store import NO_PART, RunStore, Told

log = logging.getLogger(__name__)

FLUSH_S = 0.05
"""Events are stored at most so often."""

RETRY_S = 0.25
"""Seconds between tries to reach a store that is away."""

SETTLE_S = 60.0
"""How long the end of a run waits for a store that is away; then others see that nobody works on it."""

HANDING_S = 3.0
"""The same for a run that is handed over: without being told so, others go on with it somewhat later."""


class Teller:
    """Tells the store of one run.

    Args:
        store: Keeps it.
        run_id: Which.
        token: With which it is written.
        out: What it gives out.
        journal: Of the run; None if none is kept.

    Attributes:
        out: See above.
    """

    def __init__(self, store: RunStore, run_id: str, token: str, out: Outbox, journal: RunJournal | None) -> None:
        self.out = out
        self._store = store
        self._run_id = run_id
        self._token = token
        self._journal = journal
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_over = False
        if journal is not None:
            journal.on_news, journal.on_wait = self._news.set, self._wanted
        self._news.set()

    def _wanted(self) -> None:
        self._news.set()
        self._hurry.set()

    def wake(self) -> None:
        """There is something to tell."""
        self._news.set()

    def finish(self) -> None:
        """Has `work` return."""
        self._is_over = True
        self._wanted()

    async def work(self, on_loss: Callable[[], Awaitable[None]]) -> None:
        """Tells what there is as it comes, until `finish`.

        Args:
            on_loss: Called when nobody wants it any more: the run was deleted, or others work on it.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_over:
                return
            self._hurry.clear()
            self.out.join_texts()
            wait_s = FLUSH_S
            try:
                if not await self._tell_some():
                    log.info("run %s is ended: it was deleted, or given up", self._run_id)
                    await on_loss()
                    return
            except StoreUnavailable as error:
                log.warning("run %s goes on without its store: %s", self._run_id, error)
                wait_s = RETRY_S
                self._hurry.clear()
            if self._has_more:
                self._news.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()

    @property
    def _has_more(self) -> bool:
        return self.out.num_untold > 0 or (self._journal is not None and self._journal.has_news)

    async def _tell_some(self) -> bool:
        """Sends the oldest events, with all that led to them; false if nobody wants them any more."""
        is_again = self._journal is not None and self._journal.is_sending
        # What failed to arrive is sent again as it was, without events: newer ones need the rest of the journal.
        told, count = (Told(events=(), last=-1), 0) if is_again else self.out.oldest()
        part = NO_PART if self._journal is None else self._journal.take()
        if not count and part == NO_PART:
            return True
        if not await self._store.append(self._run_id, self._token, told, part):
            return False
        self.out.note_stored(count)
        if self._journal is not None:
            self._journal.note_stored()
        return True

    # -- the end ----------------------------------------------------------------------------------------------------

    async def settle(self, ending: Ending) -> None:
        """Writes down how it ended; waits for a store that is away."""
        self.out.add(ENDS[ending.status])

        async def tell() -> bool:
            while True:
                told, count = self.out.oldest()
                if count == self.out.num_untold:
                    await self._store.settle(
                        self._run_id, self._token, told, ending.status, ending.answer, ending.error
                    )
                    return True
                if not await self._store.append(self._run_id, self._token, told):
                    return True
                self.out.note_stored(count)

        await self._patiently(tell, SETTLE_S)

    async def hand_over(self) -> bool:
        """Says that nobody works on it any more, and others are to go on; false if they cannot."""
        self.out.join_texts()

        async def tell() -> bool:
            while self._has_more:
                if not await self._tell_some():
                    return True
            return await self._store.hand_over(self._run_id, self._token)

        return await self._patiently(tell, HANDING_S)

    async def _patiently(self, tell: Callable[[], Awaitable[bool]], patience_s: float) -> bool:
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                return await tell()
            except StoreUnavailable as away:
                if time.monotonic() > deadline_s:
                    log.warning("the end of run %s could not be stored: %s", self._run_id, away)
                    return True
            await asyncio.sleep(RETRY_S)
