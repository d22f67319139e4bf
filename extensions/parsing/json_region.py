"""Regions whose calls are JSON values."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from extensions.parsing.json_calls import JsonExtent, read_calls, read_cut_calls
from extensions.parsing.regions import Region

SEPARATORS = " \t\r\n,;"
"""May stand between the calls of one region."""


class JsonRegion(Region):
    """JSON values that are calls, up to a closing marker that may be absent.

    Args:
        names: Of the given tools.
        closers: Markers that end the region.
        openers: Markers that a new region begins with: a broken one ends there at the latest.
        is_marked: An opening marker announced it: a name alone is a call.
        is_delimited: See `Region`; by default, if it is marked.
    """

    def __init__(
        self,
        names: Collection[str],
        closers: Sequence[str],
        openers: Sequence[str] = (),
        *,
        is_marked: bool,
        is_delimited: bool | None = None,
    ) -> None:
        super().__init__(names, is_delimited=is_marked if is_delimited is None else is_delimited)
        self._closers = closers
        self._openers = openers
        self._is_marked = is_marked
        ends = (*closers, *openers)
        self._ends = re.compile("|".join(map(re.escape, ends))) if self.is_delimited else None
        self._longest = max(map(len, ends))
        self._waiting = ""
        self._value: list[str] = []
        self._extent: JsonExtent | None = None
        self._is_plausible = is_marked
        self._is_broken = False

    def feed(self, text: str) -> str | None:
        """See `Region.feed`."""
        rest: str | None = text
        while rest:
            if self._is_broken:
                return self._skip_broken(rest)
            if self._extent is None:
                done, rest = self._between(rest)
                if done:
                    return rest
            else:
                rest = self._read_value(rest)
                if self.has_failed:
                    return rest
        return None

    def end(self, *, is_cut: bool) -> str:
        """See `Region.end`."""
        if is_cut and self._extent is not None and not self._is_broken:
            cut = read_cut_calls("".join(self._value), self._names)
            if cut is not None:
                self.calls += cut
                return ""
        if self._is_broken or self._extent is not None or not self.calls:
            return self._fail()
        return self._waiting if self._waiting.strip(SEPARATORS + "}") and not self._may_close() else ""

    def _between(self, text: str) -> tuple[bool, str]:
        """Looks for the next value or the end; says whether the region is over, and what is left to read."""
        self._waiting += text
        begun = self._waiting.lstrip(SEPARATORS)
        if begun[:1] in ("{", "["):
            self._waiting, self._extent = "", JsonExtent()
            return False, begun
        # One brace too many is a usual slip of small models.
        closing = self._waiting.lstrip(SEPARATORS + "}") if self.calls else begun
        for closer in self._closers:
            if closing.startswith(closer):
                if not self.calls:
                    self._fail()
                return True, closing[len(closer) :]
        if not closing or any(closer.startswith(closing) for closer in self._closers):
            return False, ""
        if self.calls:
            return True, self._waiting
        return self._break(self._waiting)

    def _may_close(self) -> bool:
        closing = self._waiting.lstrip(SEPARATORS + "}")
        return any(closer.startswith(closing) for closer in self._closers)

    def _break(self, text: str) -> tuple[bool, str]:
        if self._ends is None:
            self._fail()
            return True, ""
        self._is_broken, self._waiting = True, ""
        return False, text

    def _read_value(self, text: str) -> str:
        assert self._extent is not None
        end = self._extent.feed(text)
        piece = text if end is None else text[:end]
        self._value.append(piece)
        if not self._is_plausible and not self._check_plausible():
            self._fail()
            return text[len(piece) :]
        if end is None:
            return ""
        value, rest = "".join(self._value), text[end:]
        self._value.clear()
        self._extent = None
        calls = read_calls(value, self._names, needs_arguments=not self._is_marked)
        if calls is not None:
            self.calls += calls
            return rest
        if self._ends is None:
            self._fail()
        self._is_broken = True
        return rest

    def _check_plausible(self) -> bool:
        """Whether a value that no marker announced may still be a call, by its first key."""
        value = "".join(self._value)
        self._is_plausible = _FIRST_KEY.match(value) is not None
        return self._is_plausible or _FIRST_KEY_BEGUN.fullmatch(value) is not None

    def _skip_broken(self, text: str) -> str | None:
        assert self._ends is not None
        self._waiting += text
        found = self._ends.search(self._waiting)
        if found is None:
            self._waiting = self._waiting[-self._longest :]
            return None
        self._fail()
        at = found.start() if found.group() in self._openers else found.end()
        return self._waiting[at:]


_FIRST_KEY = re.compile(r'(\[\s{0,64})?\{\s{0,64}"(name|function|type|id|tool|tool_name|arguments|parameters|args)"')
_FIRST_KEY_BEGUN = re.compile(r'(\[\s{0,64})?(\{\s{0,64}("[a-z_]{0,10})?)?')
