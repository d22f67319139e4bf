"""What an answer's calls are made with; what a person approved is made once, however often the yes is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from extensions.tools.catalog import REPEATABLE, ToolCaller
from gateway.errors import StoreUnavailable
from gateway.state.tools import ToolStore
from gateway.tenancy.payer import Payer
from gateway.tools.calls import ServerCall, operation_id, run_call
from gateway.tools.offers import Offers, ToolDoor

log = logging.getLogger(__name__)

IN_PROGRESS = "tool_call_in_progress"
"""Code of an approved call that was begun before and has no result: it is not made again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnTools:
    """What an answer's tools are run with.

    Attributes:
        offers: Which there are.
        door: Calls them.
        caller: For whom.
        max_calls: Most calls of the answer.
        store: Knows which approved calls have been made; None without a Redis.
        approved: Calls of an earlier answer to which a person has said yes.
        payer: Who pays; the request is not settled before the whole answer has ended.
    """

    offers: Offers
    door: ToolDoor
    caller: ToolCaller
    max_calls: int
    store: ToolStore | None = None
    approved: Sequence[ServerCall] = ()
    payer: Payer | None = None

    async def make(self, call: ServerCall) -> None:
        """Makes a call; whatever comes of it is in the call. Cancelling gives it up."""
        if call.approval_id is None:
            await self._run(call, self.caller.run_id)
        elif self.store is None or call.offer.spec.effect in REPEATABLE:
            await self._run(call, call.approval_id)
        else:
            await self._make_once(call, call.approval_id, self.store)

    async def _run(self, call: ServerCall, scope: str) -> None:
        await run_call(call, self.door, self.caller, operation_id(scope, call))

    async def _make_once(self, call: ServerCall, approval_id: str, store: ToolStore) -> None:
        """Makes a call that a person approved, unless it has been made for an earlier request of the same."""
        owner = self.caller.account
        try:
            if not await store.claim(owner, approval_id):
                outcome = await store.outcome(owner, approval_id)
                if outcome is None:
                    call.leave(IN_PROGRESS, "The call was begun for another request, and has no result yet.")
                else:
                    call.recall(outcome)
                return
        except StoreUnavailable as error:
            call.leave("store_unavailable", error.message)
            return
        await self._run(call, approval_id)
        try:
            await asyncio.shield(store.settle(owner, approval_id, call.outcome()))
        except StoreUnavailable as error:
            log.warning("the outcome of call %s was not written down: %s", call.id, error)
