"""Responses whose tools the server runs: items about MCP servers, and their events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from extensions.output import Usage
from gateway.errors import ErrorReply
from gateway.schemas.items import Item, new_id
from gateway.tools.calls import ServerCall, error_item
from gateway.tools.news import ApprovalAsked, CallBegun, CallEnded, CallRunning, CallWritten, News, Said
from gateway.tools.offers import Listing
from gateway.tools.turn import ToolTurn
from gateway.translate.chat import ChatForm
from gateway.translate.responses_events import ResponseWriter
from gateway.translate.responses_object import Body


@dataclass(slots=True)
class _OpenCall:
    """A call whose item is not finished.

    Attributes:
        index: Its place in the output.
        is_written: Its arguments have been told whole.
    """

    index: int
    is_written: bool = False


class ToolResponseWriter(ResponseWriter):
    """Writes one response of a `ToolTurn`.

    Args:
        response: See the base class.
        form: See the base class.
        work: What makes it.
        listings: Servers whose tools the client has not been told of.
    """

    def __init__(self, response: Body, form: ChatForm, work: ToolTurn, listings: Iterable[Listing]) -> None:
        super().__init__(response, form)
        self._work = work
        self._listings = list(listings)
        self._calls: dict[str, _OpenCall] = {}

    def tell(self, news: Sequence[News]) -> list[bytes]:
        """What has happened since the last call."""
        events = [event for listing in self._listings for event in self._listed(listing)]
        self._listings = []
        for one in news:
            events += self._told(one)
        return events

    def fail(self, reply: ErrorReply, usage: Usage) -> list[bytes]:
        """See the base class; calls that are not over are incomplete."""
        return [*self._abandon(), *super().fail(reply, usage)]

    def cancel(self, usage: Usage) -> list[bytes]:
        """See the base class; calls that are not over are incomplete."""
        return [*self._abandon(), *super().cancel(usage)]

    def _told(self, news: News) -> list[bytes]:
        match news:
            case Said(part, tokens):
                return self._part(part, tokens)
            case CallBegun(call):
                return [] if call.offer.needs_approval else self._begin_call(call)
            case CallWritten(call, text):
                return [self._piece(call, text)] if call.id in self._calls else []
            case CallRunning(call):
                return self._written(call)
            case CallEnded(call):
                return [*self._written(call), *self._end_call(call)]
            case ApprovalAsked(call):
                return self._ask(call)

    def _begin_call(self, call: ServerCall) -> list[bytes]:
        events = self._close("completed")
        index = self._next_index()
        self._calls[call.id] = _OpenCall(index)
        item = {**_item(call), "status": "in_progress", "arguments": ""}
        events.append(self._event("response.output_item.added", {"output_index": index, "item": item}))
        events.append(self._event("response.mcp_call.in_progress", self._place_of(call)))
        return events

    def _piece(self, call: ServerCall, text: str) -> bytes:
        return self._event("response.mcp_call_arguments.delta", {**self._place_of(call), "delta": text})

    def _written(self, call: ServerCall) -> list[bytes]:
        """Events that it takes until the arguments have been told whole."""
        events: list[bytes] = []
        if call.id not in self._calls:
            # A call of an earlier response, which a person has approved.
            events = [*self._begin_call(call), self._piece(call, call.arguments)]
        opened = self._calls[call.id]
        if not opened.is_written:
            opened.is_written = True
            told = {**self._place_of(call), "arguments": call.arguments}
            events.append(self._event("response.mcp_call_arguments.done", told))
        return events

    def _end_call(self, call: ServerCall) -> list[bytes]:
        kind = "completed" if call.status == "completed" else "failed"
        events = [self._event(f"response.mcp_call.{kind}", self._place_of(call))]
        index = self._calls.pop(call.id).index
        item = _item(call)
        events.append(self._event("response.output_item.done", {"output_index": index, "item": item}))
        self._keep(index, item)
        return events

    def _ask(self, call: ServerCall) -> list[bytes]:
        events = self._close("completed")
        offer = call.offer
        fields = {"server_label": offer.label, "name": offer.name, "arguments": call.arguments}
        return events + self._at_once({"id": new_id("mcpr"), "type": "mcp_approval_request", **fields})

    def _listed(self, listing: Listing) -> list[bytes]:
        item = {"id": new_id("mcpl"), "type": "mcp_list_tools", "server_label": listing.label, "error": None}
        between = ("response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed")
        return self._at_once({**item, "tools": listing.shown()}, begun={**item, "tools": []}, between=between)

    def _at_once(self, item: Item, *, begun: Item | None = None, between: Sequence[str] = ()) -> list[bytes]:
        """An item that is over as soon as it has begun."""
        index = self._next_index()
        events = [self._event("response.output_item.added", {"output_index": index, "item": begun or item})]
        events += [self._event(kind, {"item_id": item["id"], "output_index": index}) for kind in between]
        events.append(self._event("response.output_item.done", {"output_index": index, "item": item}))
        self._keep(index, item)
        return events

    def _abandon(self) -> list[bytes]:
        events: list[bytes] = []
        for call in [*self._work.calls, *self._work.current_calls]:
            if call.id in self._calls:
                call.leave("abandoned", "The response ended before the call did.")
                events += self._end_call(call)
        return events

    def _place_of(self, call: ServerCall) -> dict[str, Any]:
        return {"item_id": call.id, "output_index": self._calls[call.id].index}

    def _cut_by(self) -> str:
        return "max_tool_calls" if self._work.finish == "max_tool_calls" else super()._cut_by()

    def _count(self, usage: Usage) -> None:
        # The thinking has been counted round by round.
        self._count_as_it_is(usage)


def _item(call: ServerCall) -> Item:
    """The item of a call."""
    return {
        "id": call.id,
        "type": "mcp_call",
        "status": call.status,
        "approval_request_id": call.approval_id,
        "arguments": call.arguments,
        "error": error_item(call),
        "name": call.offer.name,
        "output": call.output,
        "server_label": call.offer.label,
    }
