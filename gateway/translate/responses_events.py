"""A generation to the events of a response, in the order that clients count on.

created, (queued,) in_progress; for each item output_item.added, its parts piece by piece, output_item.done; then one
of completed, incomplete, failed. What the events tell is what the object holds in the end: whoever does not stream
gets the same object from the same code.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from extensions.output import TokenText, Usage
from extensions.parsing.call_ids import new_call_id
from extensions.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from gateway.errors import ErrorReply
from gateway.schemas.items import Item
from gateway.translate.chat import ChatForm
from gateway.translate.chunks import encode_json
from gateway.translate.responses_items import CallItem, MessageItem, OpenItem, ReasoningItem
from gateway.translate.responses_object import Body, failure_shown, usage_shown

_BEFORE_TYPE = len(b'{"type":"')


def frame(event: bytes) -> bytes:
    """An event as it is sent; its JSON begins with its type."""
    kind = event[_BEFORE_TYPE : event.index(b'"', _BEFORE_TYPE)]
    return b"event: " + kind + b"\ndata: " + event + b"\n\n"


class ResponseWriter:
    """Writes one response: its events, and the object itself.

    Args:
        response: The object so far; changed in place.
        form: How the model's text is read.

    Attributes:
        response: The object, true after each call.
    """

    def __init__(self, response: Body, form: ChatForm) -> None:
        self.response = response
        self._form = form
        self._reading = form.reading()
        self._next_number = 0
        self._last_kind = ""
        self._item: OpenItem | None = None
        self._item_index = 0
        self._num_items = 0
        self._done: dict[int, Item] = {}

    def begin(self) -> list[bytes]:
        """The first events of a response that is worked on at once."""
        return [self._lifecycle("response.created"), self._lifecycle("response.in_progress")]

    def begin_queued(self) -> list[bytes]:
        """The first events of one that is worked on in the background; its status is `queued`."""
        self.response["status"] = "queued"
        return [self._lifecycle("response.created"), self._lifecycle("response.queued")]

    def go_on(self) -> list[bytes]:
        """What follows `begin_queued` once there is work."""
        self.response["status"] = "in_progress"
        return [self._lifecycle("response.in_progress")]

    def read(
        self, text: str, tokens: Sequence[TokenText], token_ids: Sequence[int], finish_reason: str | None
    ) -> list[bytes]:
        """What more of the model's output brings."""
        events: list[bytes] = []
        for part in self._reading.take(text, tokens, token_ids, finish_reason):
            events += self._part(part, self._reading.tokens.take(part))
        if finish_reason is not None and (rest := self._reading.tokens.take_rest()) and self._form.request.logprobs:
            events += self._part(Content(""), rest)
        return events

    def end(self, finish_reason: str | None, usage: Usage) -> list[bytes]:
        """Closes the last item and the response: completed, or incomplete if it was cut."""
        is_cut = finish_reason == "length"
        events = self._close("incomplete" if is_cut else "completed")
        if not self.response["output"]:
            # Clients count on a message where there is nothing else.
            events += [*self._part(Content(""), ()), *self._close("incomplete" if is_cut else "completed")]
        self._count(usage)
        if is_cut:
            self.response["status"] = "incomplete"
            self.response["incomplete_details"] = {"reason": self._cut_by()}
            return [*events, self._lifecycle("response.incomplete")]
        self.response["status"] = "completed"
        self.response["completed_at"] = int(time.time())
        return [*events, self._lifecycle("response.completed")]

    def fail(self, reply: ErrorReply, usage: Usage) -> list[bytes]:
        """Ends the response with an error: an `error` event for whoever reads events, then the object."""
        events = self._close("incomplete")
        self.response |= {"status": "failed", "error": failure_shown(reply)}
        self._count(usage)
        error = reply.body["error"]
        told = {"code": error["code"], "message": error["message"], "param": error["param"]}
        return [*events, self._event("error", told), self._lifecycle("response.failed")]

    def cancel(self, usage: Usage) -> list[bytes]:
        """Ends the response as cancelled. Clients know no event of that name, so `incomplete` carries the object."""
        events = self._close("incomplete")
        self.response["status"] = "cancelled"
        self._count(usage)
        return [*events, self._lifecycle("response.incomplete")]

    def last_again(self) -> bytes:
        """The last event once more, with the object as it is now."""
        return encode_json(
            {"type": self._last_kind, "response": self.response, "sequence_number": self._next_number - 1}
        )

    def _part(self, part: Part, tokens: Sequence[TokenText]) -> list[bytes]:
        events: list[bytes] = []
        if isinstance(part, Content):
            events = self._opened(MessageItem)
            logprobs: list[Body] = (self._form.logprobs(tokens) or {"content": []})["content"]
            events.append(self._delta(part.text, logprobs))
        elif isinstance(part, Reasoning) and self._form.request.include_reasoning:
            events = self._opened(ReasoningItem)
            events.append(self._delta(part.text, None))
        elif isinstance(part, CallStart):
            events = self._close("completed")
            call_id = new_call_id(self._form.plan.tool_format)
            events += self._open(CallItem(self._num_items, part.name, call_id))
        elif isinstance(part, CallArguments):
            events.append(self._delta(part.text, None))
        return events

    def _cut_by(self) -> str:
        """Which limit cut the response."""
        return "max_output_tokens"

    def _opened(self, kind: type[MessageItem] | type[ReasoningItem]) -> list[bytes]:
        """Events that it takes until the open item is one of that kind."""
        if isinstance(self._item, kind):
            return []
        return [*self._close("completed"), *self._open(kind(self._num_items))]

    def _open(self, item: OpenItem) -> list[bytes]:
        self._item, self._item_index = item, self._next_index()
        return [self._event(kind, fields) for kind, fields in item.opening()]

    def _delta(self, text: str, logprobs: list[Body] | None) -> bytes:
        assert self._item is not None
        start = self._item.add(text, logprobs)
        return b'%b,"delta":%b,"sequence_number":%d}' % (start, encode_json(text), self._number())

    def _close(self, status: str) -> list[bytes]:
        if self._item is None:
            return []
        item, self._item = self._item, None
        events = [self._event(kind, fields) for kind, fields in item.closing(status)]
        self._keep(self._item_index, item.whole(status))
        return events

    def _next_index(self) -> int:
        """The place in the output of an item that begins now."""
        self._num_items += 1
        return self._num_items - 1

    def _keep(self, index: int, item: Item) -> None:
        """Puts an item that is over into its place."""
        self._done[index] = item
        self.response["output"] = [self._done[at] for at in sorted(self._done)]

    def _count(self, usage: Usage) -> None:
        usage.num_reasoning_tokens = self._reading.thought.count
        self._count_as_it_is(usage)

    def _count_as_it_is(self, usage: Usage) -> None:
        self.response["usage"] = usage_shown(usage)

    def _lifecycle(self, kind: str) -> bytes:
        self._last_kind = kind
        return self._event(kind, {"response": self.response})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        return encode_json({"type": kind, **fields, "sequence_number": self._number()})

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number
