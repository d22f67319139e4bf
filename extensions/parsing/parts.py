"""What a model's text is made of: thoughts, an answer, calls of tools, and what nobody is to see."""

from __future__ import annotations

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text of the model's thinking."""

    text: str


class Skipped(msgspec.Struct, frozen=True):
    """Text that is shown to nobody: markers, the space around them, and the text of calls."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins. It has no text: that is in a `Skipped` part.

    Attributes:
        index: Which call of the answer.
        name: Of a given tool.
    """

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments; joined they are JSON text.

    Attributes:
        index: Which call of the answer.
        text: The next piece.
    """

    index: int
    text: str


Part = Content | Reasoning | Skipped | CallStart | CallArguments
"""The texts of all `Content`, `Reasoning` and `Skipped` parts joined are the model's text, character by character."""


class Call(msgspec.Struct, frozen=True):
    """One whole call.

    Attributes:
        name: Of a given tool.
        arguments: JSON text of an object as the model wrote it; its beginning, if the output was cut.
    """

    name: str
    arguments: str
