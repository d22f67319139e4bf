"""Calls amid free text whose arguments are held to the tools' schemas: the grammar, and where it begins.

What begins a call is the family's marker, or without one, at the beginning of a line, all of a call up to its
arguments, name included: other JSON stays free. From there on the grammar leaves no other way than to the end of the
call. What a reader takes for such calls is in `extensions.parsing.held_names`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from engine.constraints.grammar import BOUNDED_WHITESPACE
from engine.constraints.waking import begun
from engine.request import ConstraintKind, ConstraintSpec, Opening
from extensions.parsing.formats import FENCE, ToolFormat
from extensions.parsing.held_names import NAME, SPACE, Atoms, either, heads, wrap
from extensions.parsing.held_python import python_rules
from extensions.parsing.reasoning import Thinking

_ANY_OBJECT = {"type": "object"}
_OBJECT_OF_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}

Tools = Mapping[str, dict[str, Any] | None]
"""The JSON Schema of each tool's arguments by name, None for no arguments."""

SpecialId = Callable[[str], int | None]
"""The id of a marker that is a special token."""


def held_calls(
    tools: Tools,
    strict: Collection[str],
    tool_format: ToolFormat,
    *,
    thinking: Thinking | None = None,
    special_id: SpecialId = lambda marker: None,
    schema_params: tuple[str, ...] = (),
) -> ConstraintSpec:
    """A constraint of free text in which calls match.

    Args:
        tools: All that may be called.
        strict: Those whose schemas must be kept to the letter; of others any object will do.
        tool_format: How the model writes calls.
        thinking: How the answer may think first.
        special_id: The id of a marker that is a special token.
        schema_params: What the client calls the tools' schemas.

    Raises:
        ToolUnfit: A schema cannot be enforced in this format; says why.
    """
    schemas = {name: _schema(schema) if name in strict else _ANY_OBJECT for name, schema in tools.items()}
    return ConstraintSpec(
        kind=ConstraintKind.LARK,
        source=_grammar(schemas, tool_format, special_id),
        strict=True,
        opening=Opening(
            markers=tool_format.markers,
            line=_line(tool_format),
            closers=(tool_format.closer, FENCE),
            thought=() if thinking is None else (thinking.start, thinking.end),
            in_thought=thinking is not None and thinking.is_open,
        ),
        param="tools",
        schema_params=schema_params,
    )


def _schema(schema: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "object", **schema} if schema else _OBJECT_OF_NOTHING


def _grammar(
    schemas: Mapping[str, dict[str, Any]], tool_format: ToolFormat, special_id: Callable[[str], int | None]
) -> str:
    """Bare calls, calls behind a marker, and any text that is neither, behind a call too."""
    numbers = range(len(schemas))
    start, behind = (either(shapes) for shapes in zip(*map(_around_name, heads(NAME)), strict=True))
    named = _named(schemas, tool_format, special_id)
    python, python_heads = python_rules(schemas) if tool_format.is_pythonic else ([], [])
    bare = [f"plain_{number} arguments_{number} end" for number in numbers]
    bare += [f"list_{number} arguments_{number} end rest" for number in numbers]
    bare += [f"wrap_{number} arguments_{number} end end" for number in numbers]
    marked = ["call", '"[" gap call rest', *(["named"] if named else []), *(['"[" python'] if python else [])]
    rules = [
        "start: text | bare text | marked text",
        "text: /(?s:.*)/",
        f"HEAD: /{start}/",
        f"WRAP: /{''.join(wrap())}{SPACE}/",
        f"LIST: /\\[{SPACE}/",
        f"KEY: /{behind}/",
        f"gap: /{SPACE}/",
        'end: gap "}"',
        'rest: (gap "," gap call)* gap "]"',
        f"bare: {' | '.join([*bare, *python_heads])}",
        f"marked: marker gap ({' | '.join(marked)})",
        f"marker[lazy]: /(?s:.*)({'|'.join(map(_quoted, tool_format.markers))})/",
        f"call: {' | '.join(f'head_{number} arguments_{number} end' for number in numbers)}",
        *named,
        *python,
    ]
    for number, (name, schema) in enumerate(schemas.items()):
        rules += [
            f"CALL_{number}: HEAD {json.dumps(name)} KEY",
            f"head_{number}: CALL_{number}",
            f"plain_{number}[lazy]: CALL_{number}",
            f"list_{number}[lazy]: LIST CALL_{number}",
            f"wrap_{number}[lazy]: WRAP CALL_{number}",
            f"arguments_{number}: gap %json {_inline(schema)}",
        ]
    return "\n".join(rules) + "\n"


def _inline(schema: dict[str, Any]) -> str:
    options = {"whitespace_pattern": BOUNDED_WHITESPACE, "lenient": False, "coerce_one_of": False}
    return json.dumps({**schema, "x-guidance": options})


def _named(names: Collection[str], tool_format: ToolFormat, special_id: SpecialId) -> list[str]:
    """Rules for calls written as a name and arguments."""
    mark = tool_format.arguments_marker
    if not mark:
        return []
    number = special_id(mark)
    written = json.dumps(mark) if number is None else f"<[{number}]> | {json.dumps(mark)}"
    calls = [f"{json.dumps(name)} ({written})? arguments_{at}" for at, name in enumerate(names)]
    return [f"named: {' | '.join(calls)}"]


def _line(tool_format: ToolFormat) -> str:
    """Beginnings of calls without a marker."""
    shapes = heads(NAME, "[a-z]{1,10}")
    sequences = [
        *shapes,
        *([r"\[", SPACE, *shape] for shape in shapes),
        *([*wrap(), SPACE, *shape] for shape in shapes),
    ]
    if tool_format.is_pythonic:
        sequences.append([r"\[", NAME, r"\("])
    return "|".join(map(begun, sequences))


def _around_name(shape: Atoms) -> tuple[Atoms, Atoms]:
    """What stands before the name in a shape of a call, and what behind it."""
    at = shape.index(NAME)
    return shape[:at], shape[at + 1 :]


def _quoted(marker: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):X}}}" for char in marker)
