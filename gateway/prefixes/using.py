"""Requests that go on from a prefix: opened for whoever asks, released whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.request import EngineInfo
from extensions.live_context import LiveContext
from extensions.programs.prefixes import transcript_from_bytes
from gateway.errors import UnsupportedParameter
from gateway.generations import Work
from gateway.prefixes.asking import Asker, key_id_of
from gateway.programs.running import MODEL_PREFIX
from gateway.schemas.responses import ResponseRequest
from gateway.schemas.sampling import SamplingFields
from gateway.tenancy.payer import Payer
from gateway.translate.behind import PrefixStart

if TYPE_CHECKING:
    from gateway.prefixes.service import PrefixService

_EXCLUDED: dict[str, tuple[object, ...]] = {
    "truncate_prompt_tokens": (None,),
    "n": (1,),
    "best_of": (None, 1),
    "echo": (False,),
    "suffix": ("",),
    "server_tools": ([],),
    "servers": ([],),
    "truncation": ("disabled",),
    "extension": (None,),
}
"""Fields that do not go with a prefix, and what they may be."""

_SHOWN = {"servers": "tools"}
"""What clients call them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedPrefix:
    """A prefix that a request goes on from.

    Attributes:
        live: A context of the request's own, with the prefix.
        start: What it begins with.
        kv: What the answer tells of it.
    """

    live: LiveContext
    start: PrefixStart
    kv: dict[str, Any]

    def work(self, work: Work) -> Work:
        """The same work, on the context; its prompt begins with the prefix."""
        self.live.append(work.prompt_ids[self.live.length :])
        return replace(work, held=self.live)


def check_prefix_fields(body: SamplingFields | ResponseRequest) -> None:
    """Refuses what does not go with a prefix.

    Raises:
        UnsupportedParameter: It is asked for.
    """
    if body.prefix is None:
        return
    for name, nothing in _EXCLUDED.items():
        if getattr(body, name, nothing[0]) not in nothing:
            shown = _SHOWN.get(name, name)
            raise UnsupportedParameter(shown, f"'{shown}' does not go with 'prefix'.")
    if (body.model or "").startswith(MODEL_PREFIX):
        raise UnsupportedParameter("prefix", "A program goes on from prefixes by itself, with `lm.prefix`.")


@contextlib.asynccontextmanager
async def prefix_of(
    body: SamplingFields | ResponseRequest, service: PrefixService, info: EngineInfo, payer: Payer
) -> AsyncIterator[UsedPrefix | None]:
    """The prefix that a request names; None if it names none. It is released if the body fails.

    Raises:
        NotFound: There is no such prefix for the caller.
        FingerprintMismatch: Another model or adapter made it.
        PrefixLost: Its time is over, or its KV is gone and the request wants that to fail.
        StoreUnavailable: There is no Redis, or it did not answer.
        EngineStopped: No engine is there.
    """
    asked = body.prefix
    if asked is None:
        yield None
        return
    asker = Asker(owner=payer.account, salt=payer.salt, key_id=key_id_of(payer))
    param = "prefix.id" if asked.id is not None else "prefix.name"
    adapter = info.adapter_of(body.model)
    opened = await service.open(asked.reference, asker, fails=asked.on_miss == "fail", param=param, adapter=adapter)
    live, record = opened.imported.live, opened.record
    status = "warm" if opened.imported.is_warm else "cold"
    kv = {"prefix_id": record.id, "prefix_status": status, "recomputed": not opened.imported.is_warm}
    start = PrefixStart(list(live.token_ids), transcript_from_bytes(record.transcript))
    try:
        yield UsedPrefix(live=live, start=start, kv=kv)
    except BaseException:
        live.release()
        raise
