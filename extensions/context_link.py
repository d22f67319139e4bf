"""The engine's side of a live context, kept in step with it by unanswered commands."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from engine.client import EngineClient
from engine.contexts.commands import (
    AppendTokens,
    ContextInfo,
    ForkContext,
    ImportContext,
    OpenContext,
    ReleaseContexts,
    TruncateContext,
)
from engine.contexts.edits import Edit
from engine.errors import EngineStopped

CHARGE_AGE_S = 0.05
"""What is charged within so short a time is not worth a question."""


class ContextLink:
    """What one engine process knows of a history. It is opened when it is first needed, and again in the next process.

    Args:
        engine: Where it is held.
        account: Opaque label that the engine's KV meter charges.
        salt: Prefix pages are shared only among contexts of the same salt.
        adapter: Name of the adapter that computes it; empty for the model alone.

    Attributes:
        kv_kib_ms: What its KV was charged in all, as far as the engine has told.
        charged_bytes: What it is charged for at a time, when the engine was last asked.
    """

    def __init__(self, engine: EngineClient, *, account: str, salt: str, adapter: str = "") -> None:
        self._engine = engine
        self.account = account
        self.salt = salt
        self.adapter = adapter
        self._context_id = ""
        self._epoch = ""
        self._num_sent = 0
        self._num_computed = 0
        self._kib_ms_before = 0
        self._charged_s = 0.0
        self.kv_kib_ms = 0
        self.charged_bytes = 0

    def sync(self, token_ids: Sequence[int], edits: tuple[Edit, ...]) -> str:
        """Makes the engine know a history that goes on from what it knows, and returns the context's id there.

        Raises:
            EngineStopped: No engine is there.
        """
        epoch = self._engine.info.epoch
        is_new = epoch != self._epoch
        if is_new:
            self._context_id, self._epoch, self._num_sent = uuid.uuid4().hex, epoch, 0
            self._num_computed = 0
            self._kib_ms_before = self.kv_kib_ms
            self._engine.tell(OpenContext(self._context_id, self.account, self.salt, self.adapter))
        if self._num_sent < len(token_ids):
            more = list(token_ids[self._num_sent :])
            self._engine.tell(AppendTokens(self._context_id, more, self._num_sent))
            self._num_sent = len(token_ids)
        if edits and is_new:
            self._engine.tell(TruncateContext(self._context_id, len(token_ids), edits))
        return self._context_id

    def note_charge(self, kib_ms: int) -> None:
        """The engine says what it charged for the context that it has."""
        self.kv_kib_ms = self._kib_ms_before + kib_ms
        self._charged_s = time.monotonic()

    @property
    def is_open(self) -> bool:
        """An engine knows it."""
        return bool(self._epoch)

    @property
    def num_computed(self) -> int:
        """Tokens up to which the engine has computed it; it has their KV, unless others have taken that."""
        is_there = self._engine.is_ready and self._epoch == self._engine.info.epoch
        return self._num_computed if is_there else 0

    @property
    def is_charge_old(self) -> bool:
        """The engine has it, and has not said for a while what it charged."""
        return bool(self._epoch) and time.monotonic() - self._charged_s > CHARGE_AGE_S

    def grow(self, length: int) -> None:
        """The engine has added tokens by itself: it knows as many as this now."""
        self._num_sent = self._num_computed = length

    def truncate(self, length: int, edits: tuple[Edit, ...]) -> None:
        """The history is cut, or has other edits."""
        if self._epoch:
            self._engine.tell(TruncateContext(self._context_id, length, edits))
            self._num_sent = min(self._num_sent, length)
            self._num_computed = min(self._num_computed, length)

    def fork(self, token_ids: Sequence[int], edits: tuple[Edit, ...], count: int) -> list[ContextLink]:
        """Links of as many copies of the history; without an engine they are opened later, each by itself."""
        links = [
            ContextLink(self._engine, account=self.account, salt=self.salt, adapter=self.adapter) for _ in range(count)
        ]
        if self._engine.is_ready and token_ids:
            context_id = self.sync(token_ids, edits)
            for link in links:
                link._context_id, link._epoch = uuid.uuid4().hex, self._epoch
                link._num_sent, link._num_computed = self._num_sent, self._num_computed
            self._engine.tell(ForkContext(context_id, [link._context_id for link in links]))
        return links

    def take(self, export_id: str, length: int) -> None:
        """Begins as a fork of an export of so many tokens; if there is none, the engine knows no such context.

        Raises:
            EngineStopped: No engine is there.
        """
        self._context_id, self._epoch, self._num_sent = uuid.uuid4().hex, self._engine.info.epoch, length
        self._engine.tell(ImportContext(export_id, self._context_id, self.account, self.salt))

    def lose(self) -> None:
        """The engine does not know the context: it will be opened anew."""
        self._epoch = ""

    def hand_over(self) -> str:
        """It is the engine's from here on; returns the context's id there, empty if no engine knows it."""
        context_id, self._context_id = self._context_id if self._epoch else "", ""
        self._epoch = ""
        return context_id

    def release(self) -> None:
        """The engine may forget it."""
        if self._epoch:
            self._engine.tell(ReleaseContexts([self._context_id]))
            self._epoch = ""

    async def describe(self) -> ContextInfo:
        """What the engine holds of it: nothing where no engine knows it."""
        if self._epoch:
            try:
                info = await self._engine.describe_context(self._context_id)
                self.note_charge(info.kv_kib_ms)
                self.charged_bytes = info.charged_bytes
                return info
            except EngineStopped:
                self._epoch = ""
        self.charged_bytes = 0
        return ContextInfo(length=0)
