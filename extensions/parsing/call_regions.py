"""Regions of the other kinds: Python's spelling, a name before its arguments, lists and fenced blocks of either."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from extensions.parsing.json_calls import JsonExtent, call_of
from extensions.parsing.json_region import JsonRegion
from extensions.parsing.parts import Call
from extensions.parsing.python_calls import PythonExtent, read_python_calls
from extensions.parsing.regions import MAX_HEADER_CHARS, ChoosingRegion, Region

_LANGUAGE = re.compile(r"[A-Za-z_]{0,16}[ \t\r]{0,4}")


class PythonRegion(Region):
    """A list of calls in Python's spelling; its first character is the bracket that opens it."""

    def __init__(self, names: Collection[str], closers: Sequence[str] = ()) -> None:
        super().__init__(names)
        self._closers = closers
        self._extent = PythonExtent()
        self._text: list[str] = []
        self._is_plausible = False
        self._tail = ""

    def feed(self, text: str) -> str | None:
        """See `Region.feed`."""
        if self.calls:
            return self._close(text)
        end = self._extent.feed(text)
        piece = text if end is None else text[:end]
        self._text.append(piece)
        if self._extent.is_too_large or not (self._is_plausible or self._check_plausible()):
            self._fail()
            return text[len(piece) :]
        if end is None:
            return None
        calls = read_python_calls("".join(self._text), self._names)
        if calls is None:
            return self._fail()
        self.calls += calls
        return self._close(text[end:])

    def end(self, *, is_cut: bool) -> str:
        """See `Region.end`."""
        if not self.calls:
            return self._fail()
        return "" if any(closer.startswith(self._tail.strip()) for closer in self._closers) else self._tail

    def _close(self, text: str) -> str | None:
        """Looks for a closing marker; returns what follows the region, or None if that is not known yet."""
        self._tail += text
        tail = self._tail.lstrip()
        for closer in self._closers:
            if tail.startswith(closer):
                return tail[len(closer) :]
        return None if any(closer.startswith(tail) for closer in self._closers) else self._tail

    def _check_plausible(self) -> bool:
        inner = "".join(self._text)[1:]
        name, opens, _ = inner.lstrip().partition("(")
        if len(inner) > MAX_HEADER_CHARS and not opens:
            return False
        if opens:
            self._is_plausible = name.strip() in self._names
            return self._is_plausible
        return any(known.startswith(name.strip()) for known in self._names)


class NamedRegion(Region):
    """A name, perhaps an id, and the arguments as a JSON object: `get_weather[ARGS]{"city": "Oslo"}`.

    Args:
        names: Of the given tools.
        head: What stands before the arguments; its group `name` is the name.
    """

    def __init__(self, names: Collection[str], head: re.Pattern[str]) -> None:
        super().__init__(names)
        self._pattern = head
        self._head = ""
        self._name: str | None = None
        self._value: list[str] = []
        self._extent = JsonExtent()

    def feed(self, text: str) -> str | None:
        """See `Region.feed`."""
        if self._name is None:
            self._head += text
            head, opens, body = self._head.partition("{")
            if not opens:
                return self._fail() if len(head) > MAX_HEADER_CHARS else None
            found = self._pattern.fullmatch(head)
            if found is None or found["name"] not in self._names:
                return self._fail()
            self._name, text = found["name"], opens + body
        end = self._extent.feed(text)
        self._value.append(text if end is None else text[:end])
        if end is None:
            return None
        call = call_of(self._name, "".join(self._value))
        if call is None:
            return self._fail()
        self.calls.append(call)
        return text[end:]

    def end(self, *, is_cut: bool) -> str:
        """See `Region.end`."""
        if not is_cut or self._name is None:
            return self._fail()
        self.calls.append(Call(self._name, "".join(self._value)))
        return ""


class ListRegion(ChoosingRegion):
    """A list of calls, as JSON or as Python."""

    def __init__(self, names: Collection[str], closers: Sequence[str]) -> None:
        super().__init__(names)
        self._closers = closers

    def choose(self, head: str) -> tuple[Region, str] | None:
        """See `ChoosingRegion.choose`."""
        inside = head[1:].lstrip()
        if not inside and len(head) <= MAX_HEADER_CHARS:
            return None
        if inside.startswith("{"):
            return JsonRegion(self._names, self._closers, is_marked=False), head
        return PythonRegion(self._names), head


class FenceRegion(ChoosingRegion):
    """Calls as JSON in a fenced block of Markdown."""

    def __init__(self, names: Collection[str], fence: str) -> None:
        super().__init__(names)
        self._fence = fence

    def choose(self, head: str) -> tuple[Region, str] | None:
        """See `ChoosingRegion.choose`."""
        language, newline, body = head[len(self._fence) :].partition("\n")
        if _LANGUAGE.fullmatch(language) is None:
            raise ValueError("no fence has such a language")
        return (JsonRegion(self._names, (self._fence,), is_marked=False), body) if newline else None


class MarkedRegion(ChoosingRegion):
    """What a marker announces that needs no closing one: JSON, a list in Python's spelling, or a name with arguments.

    Args:
        names: Of the given tools.
        closer: Marker that may end it.
        head: What stands before the arguments of a call that is no JSON as a whole.
    """

    def __init__(self, names: Collection[str], closer: str, head: re.Pattern[str]) -> None:
        super().__init__(names)
        self._closer = closer
        self._pattern = head

    def choose(self, head: str) -> tuple[Region, str] | None:
        """See `ChoosingRegion.choose`."""
        body = head.lstrip()
        if not body and len(head) <= MAX_HEADER_CHARS:
            return None
        if body.startswith("{"):
            return JsonRegion(self._names, (self._closer,), is_marked=True, is_delimited=False), body
        if not body.startswith("["):
            return NamedRegion(self._names, self._pattern), body
        inside = body[1:].lstrip()
        if not inside and len(head) <= MAX_HEADER_CHARS:
            return None
        if inside.startswith("{"):
            return JsonRegion(self._names, (self._closer,), is_marked=True, is_delimited=False), body
        return PythonRegion(self._names, (self._closer,)), body
