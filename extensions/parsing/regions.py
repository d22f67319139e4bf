"""Parts of a text that are calls, or turn out not to be, read piece by piece.

A region begins where a format saw a possible beginning. It takes text until it knows: then it holds calls, or it has
failed and its text is plain text. What it decides depends on the text alone, never on how it was cut into pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from extensions.parsing.parts import Call

MAX_HEADER_CHARS = 200
"""Longest text before the arguments of a call that is not written as JSON."""


class Region(ABC):
    """One possible group of calls.

    Attributes:
        calls: Those read so far.
        has_failed: It is plain text after all.
        is_delimited: If it fails, it still has an end of its own; otherwise what comes after its first character is
            to be read again.
    """

    def __init__(self, names: Collection[str], *, is_delimited: bool = False) -> None:
        self._names = names
        self.calls: list[Call] = []
        self.has_failed = False
        self.is_delimited = is_delimited

    @abstractmethod
    def feed(self, text: str) -> str | None:
        """Takes more text; returns what follows the region once it has ended, None as long as it goes on."""

    @abstractmethod
    def end(self, *, is_cut: bool) -> str:
        """No more text comes; returns what follows the region. Calls remain, or it has failed.

        Args:
            is_cut: The text was cut by its length limit: a call whose arguments have begun counts.
        """

    def _fail(self) -> str:
        self.has_failed = True
        self.calls.clear()
        return ""


class ChoosingRegion(Region):
    """A region of which the first characters tell what kind it is."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._head = ""
        self._inner: Region | None = None

    @abstractmethod
    def choose(self, head: str) -> tuple[Region, str] | None:
        """The region that reads on and what it is to read, by all text so far; None if that does not tell.

        Raises:
            ValueError: It is none.
        """

    def feed(self, text: str) -> str | None:
        """See `Region.feed`."""
        if self._inner is None:
            self._head += text
            try:
                chosen = self.choose(self._head)
            except ValueError:
                return self._fail()
            if chosen is None:
                return None
            self._inner, text = chosen
        rest = self._inner.feed(text)
        self.calls, self.has_failed = self._inner.calls, self._inner.has_failed
        return rest

    def end(self, *, is_cut: bool) -> str:
        """See `Region.end`."""
        if self._inner is None:
            return self._fail()
        rest = self._inner.end(is_cut=is_cut)
        self.calls, self.has_failed = self._inner.calls, self._inner.has_failed
        return rest
