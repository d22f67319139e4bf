"""Output items of a response while they are being written: what opens, continues and closes each kind."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.schemas.items import Item, new_id
from gateway.translate.chunks import encode_json

Fields = dict[str, Any]
Told = list[tuple[str, Fields]]
"""Types of events and what they tell."""


class OpenItem(Protocol):
    """An item that is not finished."""

    def opening(self) -> Told:
        """The events before its first piece."""
        ...

    def add(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """Takes the next piece; returns the beginning of its event."""
        ...

    def closing(self, status: str) -> Told:
        """The events after its last piece."""
        ...

    def whole(self, status: str) -> Item:
        """The item."""
        ...


class _TextItem:
    """An item whose one content part is text.

    Args:
        index: Its place in the output.
    """

    prefix = ""
    delta_type = ""
    done_type = ""

    def __init__(self, index: int) -> None:
        self.id = new_id(self.prefix)
        self._index = index
        self._texts: list[str] = []
        self._place = {"item_id": self.id, "output_index": index, "content_index": 0}
        self._start = encode_json({"type": self.delta_type, **self._place})[:-1]

    def opening(self) -> Told:
        """See `OpenItem`."""
        return [
            ("response.output_item.added", {"output_index": self._index, "item": self._item("in_progress", [])}),
            ("response.content_part.added", {**self._place, "part": self._part()}),
        ]

    def add(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """See `OpenItem`."""
        self._texts.append(text)
        return self._start

    def closing(self, status: str) -> Told:
        """See `OpenItem`."""
        part = self._part()
        told: Fields = {key: part[key] for key in ("text", "logprobs") if key in part}
        return [
            (self.done_type, {**self._place, **told}),
            ("response.content_part.done", {**self._place, "part": part}),
            ("response.output_item.done", {"output_index": self._index, "item": self.whole(status)}),
        ]

    def whole(self, status: str) -> Item:
        """See `OpenItem`."""
        return self._item(status, [self._part()])

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _part(self) -> Fields:
        raise NotImplementedError

    def _item(self, status: str, content: list[Fields]) -> Item:
        raise NotImplementedError


class MessageItem(_TextItem):
    """What the model says."""

    prefix = "msg"
    delta_type = "response.output_text.delta"
    done_type = "response.output_text.done"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[Fields] = []
        self._start += b',"logprobs":'

    def add(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """See `OpenItem`."""
        super().add(text, logprobs)
        if not logprobs:
            return self._start + b"[]"
        self._logprobs += logprobs
        return self._start + encode_json(logprobs)

    def _part(self) -> Fields:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    def _item(self, status: str, content: list[Fields]) -> Item:
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


class ReasoningItem(_TextItem):
    """What the model thinks before it speaks."""

    prefix = "rs"
    delta_type = "response.reasoning_text.delta"
    done_type = "response.reasoning_text.done"

    def _part(self) -> Fields:
        return {"type": "reasoning_text", "text": self._text}

    def _item(self, status: str, content: list[Fields]) -> Item:
        fields = {"summary": [], "content": content, "encrypted_content": None}
        return {"id": self.id, "type": "reasoning", "status": status, **fields}


class CallItem:
    """A function that the model calls.

    Args:
        index: Its place in the output.
        name: Of the function.
        call_id: What its output is to name.
    """

    def __init__(self, index: int, name: str, call_id: str) -> None:
        self.id = new_id("fc")
        self._index = index
        self._name = name
        self._call_id = call_id
        self._pieces: list[str] = []
        self._place = {"item_id": self.id, "output_index": index}
        self._start = encode_json({"type": "response.function_call_arguments.delta", **self._place})[:-1]

    def opening(self) -> Told:
        """See `OpenItem`."""
        return [("response.output_item.added", {"output_index": self._index, "item": self.whole("in_progress")})]

    def add(self, text: str, logprobs: list[Fields] | None) -> bytes:
        """See `OpenItem`."""
        self._pieces.append(text)
        return self._start

    def closing(self, status: str) -> Told:
        """See `OpenItem`."""
        told = {**self._place, "name": self._name, "arguments": "".join(self._pieces)}
        return [
            ("response.function_call_arguments.done", told),
            ("response.output_item.done", {"output_index": self._index, "item": self.whole(status)}),
        ]

    def whole(self, status: str) -> Item:
        """See `OpenItem`."""
        fields = {"call_id": self._call_id, "name": self._name, "arguments": "".join(self._pieces)}
        return {"id": self.id, "type": "function_call", "status": status, **fields}
