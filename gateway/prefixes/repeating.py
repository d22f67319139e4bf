"""Requests for prefixes that are sent again: what was made for the first is the answer to all."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Awaitable, Callable

from gateway.errors import BadRequest, PrefixLost, StoreUnavailable
from gateway.prefixes.asking import Asker
from gateway.schemas.prefixes import PrefixRequest
from gateway.state.prefixes import PrefixRecord, PrefixStore

PARAM = "Idempotency-Key"


async def made_once(
    store: PrefixStore, asker: Asker, key: str, body: PrefixRequest, make: Callable[[str], Awaitable[PrefixRecord]]
) -> PrefixRecord:
    """What a request makes, or what the first request of its name has made.

    If the worker of that was killed in between, or another one is about it, the same is made under the same id.

    Args:
        store: Of prefixes.
        asker: Who asks.
        key: The name that the request was given.
        body: The request.
        make: Makes the prefix of an id.

    Raises:
        BadRequest: The name was given to another request.
        PrefixLost: What it made has been deleted since, or its time is over.
        StoreUnavailable: Redis did not answer.
    """
    digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    claim = await store.claims.take(f"{asker.owner}/{asker.key_id}", key, digest, f"pfx_{uuid.uuid4().hex}")
    if claim.digest != digest:
        raise BadRequest(f"'{PARAM}' was given to another request before.", PARAM, "idempotency_key_reused")
    record = await store.read(claim.prefix_id)
    if record is not None and not record.is_expired:
        return record
    if record is not None or claim.is_made:
        raise PrefixLost(f"What was made with this '{PARAM}' is not there any more.", PARAM)
    try:
        record = await make(claim.prefix_id)
    except BaseException:
        with contextlib.suppress(StoreUnavailable):
            await store.claims.give_up(claim)
        raise
    await store.claims.settle(claim)
    return record
