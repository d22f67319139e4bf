"""The thinking that an answer may begin with, as far as stop strings are concerned: none ends a text inside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Markers(Protocol):
    """What encloses the thinking at the beginning of a text.

    Attributes:
        start: Text before it.
        end: Text after it.
        is_open: The prompt has begun it already.
    """

    @property
    def start(self) -> str: ...

    @property
    def end(self) -> str: ...

    @property
    def is_open(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of text in two.

    Attributes:
        thought: Belongs to the thinking.
        answer: Does not.
    """

    thought: str
    answer: str


class ThoughtSplitter:
    """Divides one text into the thinking, its markers included, and what follows.

    Withholds the beginning of a text that may turn out to be a marker.

    Attributes:
        is_over: All that follows is answer.
    """

    def __init__(self, markers: Markers) -> None:
        self._markers = markers
        self._is_inside = markers.is_open
        self._waiting = ""
        self.is_over = False

    @property
    def is_holding(self) -> bool:
        """True while text is withheld."""
        return bool(self._waiting)

    def push(self, text: str) -> Split:
        """Takes more text and divides it, and what was withheld before it."""
        if self.is_over:
            return Split("", text)
        text, self._waiting = self._waiting + text, ""
        if self._is_inside:
            return self._look_for_end(text)
        start, shown = self._markers.start, text.lstrip()
        if shown.startswith(start):
            self._is_inside = True
            return self._look_for_end(text)
        if start.startswith(shown):
            self._waiting = text
            return Split("", "")
        self.is_over = True
        return Split("", text)

    def flush(self) -> Split:
        """What was withheld; the text ends here."""
        text, self._waiting = self._waiting, ""
        return Split(text, "") if self._is_inside else Split("", text)

    def _look_for_end(self, text: str) -> Split:
        end = self._markers.end
        at = text.find(end)
        if at >= 0:
            self.is_over = True
            return Split(text[: at + len(end)], text[at + len(end) :])
        sizes = range(min(len(end) - 1, len(text)), 0, -1)
        num_held = next((size for size in sizes if text.endswith(end[:size])), 0)
        border = len(text) - num_held
        self._waiting = text[border:]
        return Split(text[:border], "")
