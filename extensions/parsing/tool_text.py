"""Text with calls in it to parts, piece by piece: a call is given when it is whole and valid, else as content."""

from __future__ import annotations

import re
from collections.abc import Collection

from extensions.parsing.formats import ToolFormat
from extensions.parsing.parts import CallArguments, CallStart, Content, Part, Skipped
from extensions.parsing.regions import Region

MAX_FAILURES = 64
"""After so many texts that might have been calls and were none, only a format's own markers are looked for."""


class ToolText:
    """Finds calls in one text.

    The parts do not depend on how the text is cut into pieces. Content is withheld where it may be the beginning of a
    call, and white space as long as a call may follow it: that around calls is skipped. If nothing was a call, the
    content is the text, character by character.

    Args:
        tool_format: How the model writes calls.
        names: Of the given tools; nothing else is a call.
        is_single: Only the first call counts; what follows it is skipped.

    Attributes:
        num_calls: Those found.
    """

    def __init__(self, tool_format: ToolFormat, names: Collection[str], *, is_single: bool = False) -> None:
        self._format = tool_format
        self._names = names
        self._is_single = is_single
        first = {opener[0] for opener in (*tool_format.markers, *tool_format.line_openers)}
        self._firsts = re.compile("[" + "".join(map(re.escape, sorted(first))) + "]")
        self._openers = sorted((*tool_format.markers, *tool_format.line_openers), key=len, reverse=True)
        self._waiting = ""
        self._space = ""
        self._line_is_blank = True
        self._follows_call = False
        self._region: Region | None = None
        self._raw: list[str] = []
        self._num_failures = 0
        self.num_calls = 0

    def feed(self, text: str) -> list[Part]:
        """The parts that more text completes."""
        parts: list[Part] = []
        rest: str | None = text
        while rest:
            if self._is_single and self.num_calls:
                parts.append(Skipped(rest))
                break
            rest = self._read_plain(rest, parts) if self._region is None else self._read_region(rest, parts)
        return parts

    def end(self, *, is_cut: bool) -> list[Part]:
        """The last parts; no more text comes.

        Args:
            is_cut: The text was cut by its length limit: a call whose arguments have begun is given as it is.
        """
        parts: list[Part] = []
        if self._region is not None:
            rest = self._region.end(is_cut=is_cut)
            self._give(self._end_region(rest, parts), parts)
        self._give(self._waiting, parts)
        self._waiting = ""
        if self._space:
            parts.append(Skipped(self._space) if self.num_calls else Content(self._space))
        return parts

    def _read_plain(self, text: str, parts: list[Part]) -> str:
        """Gives content up to where a call may begin; returns what is to be read after that."""
        text, self._waiting = self._waiting + text, ""
        at = 0
        while (found := self._firsts.search(text, at)) is not None:
            at = found.start()
            opener = self._opener(text, at)
            if opener is None:
                at += 1
                continue
            self._give(text[:at], parts)
            if text.startswith(opener, at):
                return self._open(opener, text[at:])
            self._waiting = text[at:]
            return ""
        self._give(text, parts)
        return ""

    def _opener(self, text: str, at: int) -> str | None:
        """What may begin at a place, if all that the text shows of it is right."""
        shown = text[at : at + len(self._openers[0])]
        for opener in self._openers:
            if not (shown.startswith(opener) or (opener.startswith(shown) and at + len(shown) == len(text))):
                continue
            if opener in self._format.markers or (self._num_failures < MAX_FAILURES and self._begins_line(text, at)):
                return opener
        return None

    def _begins_line(self, text: str, at: int) -> bool:
        while at > 0 and text[at - 1] in " \t\r":
            at -= 1
        return text[at - 1] == "\n" if at > 0 else self._line_is_blank

    def _open(self, opener: str, text: str) -> str:
        self._region = self._format.open(opener, self._names)
        self._raw = []
        if opener in self._format.markers:
            self._raw.append(opener)
            return text[len(opener) :]
        return text

    def _read_region(self, text: str, parts: list[Part]) -> str:
        assert self._region is not None
        self._raw.append(text)
        rest = self._region.feed(text)
        if rest is None and self._is_single and self._region.calls:
            rest = ""
        if rest is None:
            return ""
        return self._end_region(rest, parts)

    def _end_region(self, rest: str, parts: list[Part]) -> str:
        """Gives the calls of the region or, if there are none, its text; returns what is to be read after it."""
        region, self._region = self._region, None
        assert region is not None
        raw = "".join(self._raw)
        if region.has_failed:
            self._num_failures += not region.is_delimited
            kept = len(raw) - len(rest) if region.is_delimited else 1
            self._give(raw[:kept], parts)
            return raw[kept:]
        parts.append(Skipped(self._space + raw[: len(raw) - len(rest)]))
        self._space, self._line_is_blank, self._follows_call = "", True, True
        for call in region.calls[: 1 if self._is_single else None]:
            parts.append(CallStart(self.num_calls, call.name))
            parts.append(CallArguments(self.num_calls, call.arguments))
            self.num_calls += 1
        return rest

    def _give(self, text: str, parts: list[Part]) -> None:
        """Gives content, but for the white space at its end."""
        if not text:
            return
        self._line_is_blank = self._begins_line(text, len(text))
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if not shown:
            return
        if self._follows_call:
            text, shown = shown, shown.lstrip()
            if len(shown) < len(text):
                parts.append(Skipped(text[: -len(shown)]))
            self._follows_call = False
        parts.append(Content(shown))
