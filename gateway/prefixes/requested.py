"""A prefix that a request has a program make: the first history that it exports under the name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from extensions.live_context import LiveContext
from extensions.programs.prefixes import ExportWish
from gateway.errors import BadRequest
from gateway.prefixes.service import Making, digest_of
from gateway.state.prefixes import PrefixRecord

if TYPE_CHECKING:
    from gateway.prefixes.asking import Asker
    from gateway.prefixes.service import PrefixService


@dataclass(kw_only=True, slots=True)
class RequestedPrefix:
    """What a request wants, and what has come of it.

    Attributes:
        name: Under which it is to be exported.
        given: What the request says of how it is kept, as fields of `ExportWish`: the program's word counts less.
        making: The rest of it.
        prefix_id: The id that it must get; a new one if it is empty.
        record: What was made; None before.
    """

    name: str
    given: Mapping[str, Any]
    making: Making
    prefix_id: str = ""
    record: PrefixRecord | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def make(self, service: PrefixService, live: LiveContext, wish: ExportWish, asker: Asker) -> PrefixRecord:
        """Keeps a history as the prefix; the same one again is what was made before.

        Args:
            service: What keeps prefixes.
            live: The history.
            wish: How the program wants it to be kept.
            asker: Whose it is.

        Raises:
            BadRequest: Another history is the prefix already, or what `PrefixService.create` refuses.
            StoreUnavailable: There is no Redis, or it did not answer.
            EngineStopped: No engine is there.
        """
        async with self._lock:
            if self.record is None:
                wish = replace(wish, **self.given)
                self.record = await service.create(live, wish, self.making, asker, self.prefix_id)
            elif not _is_of(self.record, live):
                message = f"This run makes one version of '{self.name}', and has made it of another history."
                raise BadRequest(message, "name")
            return self.record


def _is_of(record: PrefixRecord, live: LiveContext) -> bool:
    known = (record.token_sha256, record.edits, record.adapter)
    return known == (digest_of(live.token_ids), live.edits, live.adapter)
