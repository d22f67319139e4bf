"""An answer that may call tools, read while it arrives: what of it is content, and which calls are whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from extensions.journal.effects import value
from extensions.parsing.answers import AnswerPlan, AnswerReader
from extensions.parsing.call_ids import new_call_id
from extensions.parsing.detection import detect_thinking, special_marker_ids
from extensions.parsing.formats import ToolFormat
from extensions.parsing.parts import CallArguments, CallStart, Content, Part

ToolCall = dict[str, Any]
"""A call as scripts have it: `id`, `name`, `arguments`, the last a dict."""

_TAIL_TOKENS = 64


class AnswerWatch:
    """Reads one answer.

    Args:
        plan: How.
        revealed_ids: Special tokens that must be seen for that.
        on_call: Told of each call as soon as it is whole.

    Attributes:
        calls: Those that are whole.
        content: The text without calls and thinking.
        plan: See above.
        revealed_ids: See above.
    """

    def __init__(
        self,
        plan: AnswerPlan,
        revealed_ids: frozenset[int] = frozenset(),
        on_call: Callable[[ToolCall], None] | None = None,
    ) -> None:
        self.plan = plan
        self.revealed_ids = revealed_ids
        self.calls: list[ToolCall] = []
        self.content = ""
        self._reader: AnswerReader = plan.reader()
        self._on_call = on_call
        self._begun: tuple[str, str] | None = None

    def feed(self, text: str) -> str:
        """More of the answer; returns the content in it."""
        return self._take(self._reader.feed(text))

    def end(self, *, is_cut: bool) -> str:
        """No more comes; returns the rest of the content."""
        rest = self._take(self._reader.end(is_cut=is_cut))
        self._finish_call()
        return rest

    def _take(self, parts: Sequence[Part]) -> str:
        content = ""
        for part in parts:
            if isinstance(part, Content):
                content += part.text
            elif isinstance(part, CallStart):
                self._finish_call()
                self._begun = part.name, ""
            elif isinstance(part, CallArguments) and self._begun is not None:
                self._begun = self._begun[0], self._begun[1] + part.text
                if part.text.rstrip().endswith("}"):
                    self._finish_call(may_be_part=True)
        self.content += content
        return content

    def _new_id(self) -> str:
        return new_call_id(self.plan.tool_format)

    def _finish_call(self, *, may_be_part: bool = False) -> None:
        if self._begun is None:
            return
        name, written = self._begun
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError):
            if not may_be_part:
                self._begun = None  # cut by the end of the answer: nobody can say what was meant
            return
        self._begun = None
        if isinstance(arguments, dict):
            call = {"id": value("call_id", self._new_id), "name": name, "arguments": arguments}
            self.calls.append(call)
            if self._on_call is not None:
                self._on_call(call)


def free_watch(
    text: TextModel,
    tool_format: ToolFormat,
    names: Collection[str],
    history: Sequence[int],
    on_call: Callable[[ToolCall], None] | None = None,
) -> AnswerWatch:
    """For an answer that may have calls in it, as the model's family writes them.

    Args:
        text: The model's text side.
        tool_format: How the model writes calls.
        names: Tools that it may call.
        history: What it answers to.
        on_call: See `AnswerWatch`.
    """
    template, tokenizer = text.chat_template, text.tokenizer
    thinking = None
    if template is not None:
        thinking = detect_thinking(template).at_end_of(_tail(tokenizer, history))
    markers = () if thinking is None else (thinking.start, thinking.end)
    revealed = special_marker_ids(tokenizer, (*markers, *tool_format.special_markers))
    return AnswerWatch(AnswerPlan(thinking=thinking, tool_format=tool_format, names=tuple(names)), revealed, on_call)


def forced_watch(tool_format: ToolFormat, names: Sequence[str]) -> AnswerWatch:
    """For an answer that a constraint forces to be calls."""
    plan = AnswerPlan(thinking=None, tool_format=tool_format, names=tuple(names), is_forced=True)
    return AnswerWatch(plan)


def _tail(tokenizer: Tokenizer, history: Sequence[int]) -> str:
    return tokenizer.decode(history[-_TAIL_TOKENS:], skip_special=False)
