"""Admission: one round trip to Redis for a request of a tenant, none for any other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import QuotaStoreUnavailable
from gateway.state import admit_scripts
from gateway.state.tasks import end_task
from gateway.state.tenancy import PREFIX
from gateway.tenancy.keys import PresentedKey
from gateway.tenancy.tickets import Ticket
from gateway.tenancy.verdicts import Verdict

log = logging.getLogger(__name__)

SLOT_S = 30.0
"""A slot is free again when its process has said nothing for so long."""

RENEW_S = 8.0
"""Seconds between signs that the requests in flight still are."""

SETTLE_S = 60.0
"""Seconds that a request's end waits for a Redis that is away, before what it used is given up."""

MAX_UNSETTLED = 10_000
"""Requests that may wait to be settled; no more are admitted then."""

_RETRY_S = 0.25


class Gate:
    """Admits requests of tenants and settles them. Belongs to one event loop.

    Args:
        redis: Where tenants are; the caller closes it.
    """

    def __init__(self, redis: Redis) -> None:
        self._admitting = redis.register_script(admit_scripts.ADMIT)
        self._settling = redis.register_script(admit_scripts.SETTLE)
        self._renewing = redis.register_script(admit_scripts.RENEW)
        self._open: dict[str, Ticket] = {}
        self._unsettled: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None

    @property
    def num_open(self) -> int:
        """Admitted requests that have not ended."""
        return len(self._open)

    async def look(self, key: PresentedKey, scope: str) -> Verdict:
        """Who a key belongs to; takes nothing.

        Args:
            key: As it came.
            scope: That it must have; empty for none.

        Raises:
            QuotaStoreUnavailable: Redis did not answer.
        """
        return await self._ask(key, "", "look", scope, "", 0)

    async def admit(self, key: PresentedKey, scope: str, tokens: int) -> tuple[Verdict, Ticket | None]:
        """Takes all that a request needs, or nothing.

        Args:
            key: As it came.
            scope: That it must have.
            tokens: It is going to use about so many.

        Returns:
            What was decided, and a ticket if the request is to be settled; close that however the request ends.

        Raises:
            QuotaStoreUnavailable: Redis did not answer.
        """
        name = new_name()
        verdict = await self._ask(key, "", "work", scope, name, tokens)
        if verdict.kind != "ok" or not verdict.tenant:
            return verdict, None
        return verdict, self._ticket(name, verdict, key.key_id, tokens)

    async def admit_own(self, tenant: str) -> tuple[Verdict, Ticket | None]:
        """Admits a request of our own for a tenant, a line of a batch: rates do not count, state and KV quota do.

        Raises:
            QuotaStoreUnavailable: Redis did not answer.
        """
        name = new_name()
        verdict = await self._ask(None, tenant, "own", "", name, 0)
        return verdict, self._ticket(name, verdict, "", 0) if verdict.kind == "ok" else None

    async def aclose(self) -> None:
        """Waits a moment for what is being settled, then gives it up. Idempotent."""
        await end_task(self._beating)
        if self._unsettled:
            await asyncio.wait(self._unsettled, timeout=2.0)
        for task in list(self._unsettled):
            await end_task(task)

    async def settled(self) -> None:
        """Waits until all that has ended is settled."""
        while self._unsettled:
            await asyncio.wait(set(self._unsettled))

    async def _ask(
        self, key: PresentedKey | None, tenant: str, mode: str, scope: str, name: str, tokens: int
    ) -> Verdict:
        if len(self._unsettled) >= MAX_UNSETTLED:
            raise QuotaStoreUnavailable("Too many requests wait for the store of quotas.")
        key_id, digest = ("", "") if key is None else (key.key_id, key.digest)
        record = f"{PREFIX}key:{key_id}" if key_id else f"{PREFIX}tenant:{tenant}"
        args = [PREFIX, key_id, digest, tenant, name, str(tokens), scope, mode, str(int(SLOT_S * 1000))]
        # What was sent is executed even if nobody waits for it any more: its slot must then be given back.
        asking = asyncio.ensure_future(self._admitting(keys=[record], args=args))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            if name:
                self._settle_later(Ticket(name, tenant, key_id, tokens, {}, lambda _: None), asking)
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise QuotaStoreUnavailable(f"The store of quotas does not answer: {type(error).__name__}.") from error
        return Verdict.read(answer)

    def _ticket(self, name: str, verdict: Verdict, key_id: str, tokens: int) -> Ticket:
        ticket = Ticket(name, verdict.tenant, key_id, tokens, verdict.headers(), self._close)
        self._open[name] = ticket
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())
        return ticket

    def _close(self, ticket: Ticket) -> None:
        del self._open[ticket.name]
        ticket.add("requests", 1)
        self._settle_later(ticket)

    def _settle_later(self, ticket: Ticket, asking: asyncio.Future[Sequence[object]] | None = None) -> None:
        task = asyncio.create_task(self._settle(ticket, asking))
        self._unsettled.add(task)
        task.add_done_callback(self._unsettled.discard)

    async def _settle(self, ticket: Ticket, asking: asyncio.Future[Sequence[object]] | None) -> None:
        if asking is not None:
            try:
                verdict = Verdict.read(await asking)
            except (RedisError, OSError, TimeoutError):
                return
            if verdict.kind != "ok" or not verdict.tenant:
                return
            ticket.tenant = verdict.tenant
        deadline_s = asyncio.get_running_loop().time() + SETTLE_S
        while True:
            try:
                await self._settling(keys=[f"{PREFIX}done:{ticket.name}"], args=_settlement(ticket))
                return
            except (RedisError, OSError, TimeoutError) as error:
                if asyncio.get_running_loop().time() > deadline_s:
                    log.warning("what request %s used is lost: %r", ticket.name, error)
                    return
            await asyncio.sleep(_RETRY_S)

    async def _beat(self) -> None:
        while self._open:
            await asyncio.sleep(RENEW_S)
            triples = [part for one in self._open.values() for part in (one.tenant, one.key_id, one.name)]
            if triples:
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    await self._renewing(keys=[f"{PREFIX}tenants"], args=[PREFIX, str(int(SLOT_S * 1000)), *triples])


def new_name() -> str:
    """A name that no other request has."""
    return uuid.uuid4().hex


def _settlement(ticket: Ticket) -> list[str]:
    model, program = (label.replace("|", "/")[:128] for label in ticket.labels)
    counts = [part for name, number in ticket.used.items() if number for part in (name, str(number))]
    head = [PREFIX, ticket.name, ticket.tenant, ticket.key_id, str(ticket.reserved), str(ticket.num_tokens)]
    return [*head, f"{model}|{program}", *counts]
