"""Thinking before an answer: which markers enclose it, and how it is told from the answer while it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from extensions.parsing.parts import Content, Part, Reasoning, Skipped

ReasoningFormat = Literal["auto", "none", "think", "thinking", "mistral", "cohere", "seed"]

MARKERS: dict[str, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "thinking": ("<thinking>", "</thinking>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "seed": ("<seed:think>", "</seed:think>"),
}
"""The marker before and the one after, by the name of their format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thinking:
    """How one answer may think.

    Attributes:
        start: Marker before the thinking.
        end: Marker after it.
        is_open: The prompt ends inside the thinking already.
    """

    start: str
    end: str
    is_open: bool = False

    def at_end_of(self, prompt: str) -> Thinking:
        """The same for an answer to `prompt`, which may have begun the thinking."""
        begun = prompt.rfind(self.start)
        is_open = begun >= 0 and self.end not in prompt[begun:] and not prompt[begun + len(self.start) :].strip()
        return Thinking(start=self.start, end=self.end, is_open=is_open)


class ReasoningText:
    """Splits one text into thinking and answer.

    The thinking is what an opening marker at the beginning of the text encloses, or all up to the closing marker if the
    prompt has opened it. Without a closing marker all of it is thinking. Markers and the white space around them are
    skipped. The parts do not depend on how the text is cut into pieces.

    Args:
        thinking: The markers.

    Attributes:
        is_over: All that follows is answer.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self._is_inside = thinking.is_open
        self._follows_marker = False
        self._waiting = ""
        self._has_thought = False
        self.is_over = False

    def feed(self, text: str) -> list[Part]:
        """The parts that more text completes; the answer is `Content`."""
        if self.is_over:
            return [Content(text)] if text else []
        self._waiting += text
        parts: list[Part] = []
        if not self._is_inside and not self._follows_marker:
            self._look_for_start(parts)
        if self._is_inside:
            self._look_for_end(parts)
        if self._follows_marker:
            self._skip_space(parts)
        return parts

    def end(self) -> list[Part]:
        """The last parts; no more text comes."""
        text, self._waiting = self._waiting, ""
        if not text:
            return []
        if self._follows_marker or (self._is_inside and not text.strip()):
            return [Skipped(text)]
        return [Reasoning(text)] if self._is_inside else [Content(text)]

    def _look_for_start(self, parts: list[Part]) -> None:
        shown = self._waiting.lstrip()
        start = self._thinking.start
        if shown.startswith(start):
            num_skipped = len(self._waiting) - len(shown) + len(start)
            parts.append(Skipped(self._waiting[:num_skipped]))
            self._waiting = self._waiting[num_skipped:]
            self._is_inside = True
        elif not start.startswith(shown):
            parts.append(Content(self._waiting))
            self._waiting, self.is_over = "", True

    def _look_for_end(self, parts: list[Part]) -> None:
        end = self._thinking.end
        at = self._waiting.find(end)
        if at < 0:
            at = len(self._waiting) - _overlap(self._waiting, end)
            self._waiting = self._give(self._waiting[:at], parts) + self._waiting[at:]
            return
        space = self._give(self._waiting[:at], parts)
        parts.append(Skipped(space + end))
        self._waiting = self._waiting[at + len(end) :]
        self._is_inside, self._follows_marker = False, True

    def _give(self, text: str, parts: list[Part]) -> str:
        """Gives thinking without the white space around it; returns that at its end."""
        if not self._has_thought:
            shown = text.lstrip()
            if shown and len(shown) < len(text):
                parts.append(Skipped(text[: -len(shown)]))
            if not shown:
                return text
            text = shown
        shown = text.rstrip()
        if shown:
            self._has_thought = True
            parts.append(Reasoning(shown))
        return text[len(shown) :]

    def _skip_space(self, parts: list[Part]) -> None:
        shown = self._waiting.lstrip()
        if not shown:
            return
        if len(shown) < len(self._waiting):
            parts.append(Skipped(self._waiting[: -len(shown)]))
        parts.append(Content(shown))
        self._waiting, self._follows_marker, self.is_over = "", False, True


def _overlap(text: str, marker: str) -> int:
    """Most characters at the end of `text` that `marker` begins with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
