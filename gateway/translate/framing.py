"""What may stand around an answer that must have a form: thinking before it, or calls in its place."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from engine.request import ConstraintSpec
from extensions.parsing.forced import MAX_PARALLEL_CALLS, call_grammar
from gateway.schemas.tools import Tool

CALL_MARKERS = ("<tool_call>", "</tool_call>")
"""Around each call. Formats with other markers leave no way to tell a call from the answer by its first token."""


def framed(
    constraint: ConstraintSpec,
    *,
    thought: str = "",
    tools: Sequence[Tool] = (),
    is_single: bool = False,
    schema_params: tuple[str, ...] = (),
) -> ConstraintSpec:
    """A constraint of the answer as one of the whole output.

    Args:
        constraint: Of the answer.
        thought: Rules for what may come before it, with one called `thought`; see `thought_grammar`.
        tools: Those that the model may call instead of answering, in `CALL_MARKERS`.
        is_single: At most one call.
        schema_params: What the client calls the tools' schemas.
    """
    if not thought and not tools:
        return constraint
    lines = [f"start: {'thought ' if thought else ''}{'(@answer | calls)' if tools else '@answer'}"]
    lines += [thought] if thought else []
    if tools:
        opener, closer = (json.dumps(marker) for marker in (f"{CALL_MARKERS[0]}\n", f"\n{CALL_MARKERS[1]}"))
        more = "" if is_single else f' ("\\n" marked){{0,{MAX_PARALLEL_CALLS - 1}}}'
        lines += [f"calls: marked{more}", f"marked: {opener} call {closer}", _call_rules(tools)]
    return msgspec.structs.replace(constraint, frame="\n".join(lines) + "\n", schema_params=schema_params)


def _call_rules(tools: Sequence[Tool]) -> str:
    """The rules of `call_grammar` but for its first, with one called `call`."""
    functions = [tool.function for tool in tools]
    grammar = call_grammar(
        {function.name: function.parameters for function in functions},
        is_parallel=False,
        strict=[function.name for function in functions if function.strict],
    )
    return grammar.split("\n", 1)[1].rstrip()
