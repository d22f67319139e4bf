"""What an answer's calls are made with; what a person approved is made once, however often the yes is sent."""

from __future__ import annotations

import asyncio
import logging
import math
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
        max_s: Seconds after the answer's beginning in which calls are begun.
        store: Knows which approved calls have been made; None without a Redis.
        approved: Calls of an earlier answer to which a person has said yes.
        payer: Who pays; the request is not settled before the whole answer has ended.
        key: The client's own name for the request: what its calls have done is not done again for the same name.
    """

    offers: Offers
    door: ToolDoor
    caller: ToolCaller
    max_calls: int
    max_s: float = math.inf
    store: ToolStore | None = None
    approved: Sequence[ServerCall] = ()
    payer: Payer | None = None
    key: str = ""

    async def make(self, call: ServerCall) -> None:
        """Makes a call; whatever comes of it is in the call. Cancelling gives it up."""
        scope = call.approval_id or (f"key {self.key}" if self.key else self.caller.run_id)
        operation = operation_id(scope, call)
        if self.store is None or not self._is_named(call) or call.offer.spec.effect in REPEATABLE:
            await run_call(call, self.door, self.caller, operation)
        else:
            await self._make_once(call, call.approval_id or operation, operation, self.store)

    def _is_named(self, call: ServerCall) -> bool:
        """Whether a call can be told from another one when the request comes again."""
        return call.approval_id is not None or bool(self.key)

    async def _make_once(self, call: ServerCall, name: str, operation: str, store: ToolStore) -> None:
        """Makes a call, unless it has been made for an earlier request of the same."""
        owner = self.caller.account
        try:
            if not await store.claim(owner, name):
                outcome = await store.outcome(owner, name)
                if outcome is None:
                    call.leave(IN_PROGRESS, "The call was begun for another request, and has no result yet.")
                else:
                    call.recall(outcome)
                return
        except StoreUnavailable as error:
            call.leave("store_unavailable", error.message)
            return
        await run_call(call, self.door, self.caller, operation)
        try:
            await asyncio.shield(store.settle(owner, name, call.outcome()))
        except StoreUnavailable as error:
            log.warning("the outcome of call %s was not written down: %s", call.id, error)
