"""One answer's text to parts: first the thinking is told from the answer, then the calls from the content."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from extensions.parsing.forced import ForcedText
from extensions.parsing.formats import ToolFormat
from extensions.parsing.held_names import HeldNames
from extensions.parsing.parts import CallStart, Content, Part
from extensions.parsing.reasoning import ReasoningText, Thinking
from extensions.parsing.tool_text import ToolText


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerPlan:
    """How the answers to one request are read.

    Attributes:
        thinking: How an answer may think; None if that is not told apart.
        tool_format: How the model writes calls.
        names: Tools that it may call; without any, calls are text.
        is_forced: The output is forced to be calls.
        is_held: Calls amid free text are held to the tools' schemas; see `extensions.parsing.held`.
        is_single: At most one call.
    """

    thinking: Thinking | None
    tool_format: ToolFormat
    names: tuple[str, ...] = ()
    is_forced: bool = False
    is_held: bool = False
    is_single: bool = False

    def reader(self) -> AnswerReader:
        """Reads one answer."""
        return AnswerReader(self)

    def first_call_watch(self) -> Callable[[str], int | None]:
        """Told of an answer's text as it comes, says where in it the first call is over."""
        reader = AnswerReader(self)
        num_calls = 0

        def watch(text: str) -> int | None:
            nonlocal num_calls
            for at in range(len(text)):
                num_calls += sum(isinstance(part, CallStart) for part in reader.feed(text[at]))
                if num_calls:
                    return at + 1
            return None

        return watch


class AnswerReader:
    """Reads one answer, piece by piece; the parts do not depend on the pieces.

    Attributes:
        num_calls: Those begun.
    """

    def __init__(self, plan: AnswerPlan) -> None:
        self._reasoning = ReasoningText(plan.thinking) if plan.thinking is not None else None
        self._calls: ToolText | ForcedText | None = None
        if plan.names:
            self._calls = ForcedText(plan.names) if plan.is_forced else _tool_text(plan)

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def is_through(self) -> bool:
        """True if whatever follows is content as it stands."""
        return self._calls is None and (self._reasoning is None or self._reasoning.is_over)

    def feed(self, text: str) -> list[Part]:
        """The parts that more text completes."""
        if self._reasoning is None:
            return self._find_calls([Content(text)] if text else [])
        return self._find_calls(self._reasoning.feed(text))

    def end(self, *, is_cut: bool) -> list[Part]:
        """The last parts; no more text comes.

        Args:
            is_cut: The text was cut by its length limit.
        """
        parts = [] if self._reasoning is None else self._find_calls(self._reasoning.end())
        return parts if self._calls is None else parts + self._calls.end(is_cut=is_cut)

    def _find_calls(self, parts: list[Part]) -> list[Part]:
        if self._calls is None:
            return parts
        found: list[Part] = []
        for part in parts:
            found += self._calls.feed(part.text) if isinstance(part, Content) else [part]
        return found


def _tool_text(plan: AnswerPlan) -> ToolText:
    names: Collection[str] = plan.names
    if plan.is_held:
        names = HeldNames(names, is_pythonic=plan.tool_format.is_pythonic)
    return ToolText(plan.tool_format, names, is_single=plan.is_single)
