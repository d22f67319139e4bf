"""Calls that the output was forced to be: the grammar for them, and the text of them to parts while it arrives.

The text is `{"name": "f", "arguments": {…}}`, or a list of these where several calls are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from extensions.parsing.json_calls import JsonExtent
from extensions.parsing.parts import CallArguments, CallStart, Content, Part, Skipped

MAX_PARALLEL_CALLS = 32
"""Most calls of one forced answer."""

_HEAD = re.compile(r'[\s\[,}]*\{"name": "(?P<name>[A-Za-z0-9_-]+)", "arguments": ')
_HEAD_CHARS = 200
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(
    tools: Mapping[str, dict[str, Any] | None],
    *,
    is_parallel: bool,
    may_be_single: bool = False,
    strict: Collection[str] = (),
    thought: str = "",
) -> str:
    """A Lark grammar, as llguidance reads it, of calls whose arguments match the tools' schemas.

    Args:
        tools: The JSON Schema of each allowed tool's arguments by name, None for no arguments.
        is_parallel: A list of calls.
        may_be_single: A call that is in no list will do too.
        strict: Tools whose schemas must be enforced to the letter; in others, keywords that cannot be are left out.
        thought: Rules for what may come before the calls, with one called `thought`; see `thought_grammar`.
    """
    several = f'"[" call (", " call){{0,{MAX_PARALLEL_CALLS - 1}}} "]"'
    wanted = "call" if not is_parallel else f"(call | {several})" if may_be_single else several
    lines = [f"start: {'thought ' if thought else ''}{wanted}"]
    lines += [thought] if thought else []
    lines += ["call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
    for number, (name, schema) in enumerate(tools.items()):
        head = json.dumps(f'{{"name": "{name}", "arguments": ')
        lines += [f'call_{number}: {head} arguments_{number} "}}"']
        lines += [f"arguments_{number}: %json {_argument_schema(schema, is_strict=name in strict)}"]
    return "\n".join(lines) + "\n"


def thought_grammar(start: str, end: str, *, is_open: bool, special_ids: tuple[int, int] | None = None) -> str:
    """Rules for the thinking before an answer.

    Args:
        start: Marker before it.
        end: Marker after it.
        is_open: The prompt ends with `start`, so the thinking goes on from there; otherwise there need be none.
        special_ids: Of the markers, if both are special tokens.
    """
    if special_ids is not None:
        body = f"/(?s:.)*/ <[{special_ids[1]}]> thought_gap"
        marker = f"<[{special_ids[0]}]>"
    else:
        body = "thought_text thought_gap"
        marker = json.dumps(start)
    lines = [f"thought: {body}" if is_open else f"thought: ({marker} {body})?", "thought_gap: /\\s{0,4}/"]
    lines += (
        []
        if special_ids is not None
        else [f"thought_text[lazy]: /(?s:.)*{re.escape(end).replace('/', chr(92) + '/')}/"]
    )
    return "\n".join(lines)


def _argument_schema(schema: dict[str, Any] | None, *, is_strict: bool) -> str:
    wanted = {"type": "object", **schema} if schema else _NO_PARAMETERS
    return json.dumps({**wanted, "x-guidance": {**_SPACING, "lenient": not is_strict, "coerce_one_of": not is_strict}})


class ForcedText:
    """Reads the text of forced calls; arguments are given as they come.

    Args:
        names: Of the allowed tools.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # The only tool that may be called is known before it is written.
        self._only = names[0] if len(names) == 1 else None
        self._head = ""
        self._extent: JsonExtent | None = None
        self._has_started = False
        self.num_calls = 0

    def feed(self, text: str) -> list[Part]:
        """The parts that more text completes."""
        parts: list[Part] = []
        if text and self._only is not None and not self._has_started:
            self._start(self._only, parts)
        while text:
            text = self._read_head(text, parts) if self._extent is None else self._read_arguments(text, parts)
        return parts

    def end(self, *, is_cut: bool) -> list[Part]:
        """The last parts; no more text comes.

        Args:
            is_cut: The text was cut by its length limit: the beginning of a call is shown to nobody.
        """
        if not self._head:
            return []
        is_call_text = is_cut or not self._head.strip("}] \n")
        return [Skipped(self._head) if is_call_text else Content(self._head)]

    def _read_head(self, text: str, parts: list[Part]) -> str:
        self._head += text
        found = _HEAD.match(self._head)
        if found is None:
            if len(self._head) > _HEAD_CHARS:
                parts.append(Content(self._head))
                self._head = ""
            return ""
        rest, self._head = self._head[found.end() :], ""
        parts.append(Skipped(found.group()))
        if not (self._has_started and self.num_calls == 0):
            self._start(found["name"], parts)
        self._extent = JsonExtent()
        self.num_calls += 1
        return rest

    def _start(self, name: str, parts: list[Part]) -> None:
        self._has_started = True
        parts.append(CallStart(self.num_calls, name))

    def _read_arguments(self, text: str, parts: list[Part]) -> str:
        assert self._extent is not None
        end = self._extent.feed(text)
        piece = text if end is None else text[:end]
        parts += [Skipped(piece), CallArguments(self.num_calls - 1, piece)]
        if end is None:
            return ""
        self._extent = None
        return text[end:]
