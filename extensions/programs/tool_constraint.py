"""`{"tools": [...]}`: an answer that must be calls of some tools, with arguments that fit their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.request import ConstraintKind, ConstraintSpec
from extensions.parsing.forced import call_grammar
from extensions.programs.arguments import schema_error
from extensions.programs.constraints import ScriptConstraint
from extensions.programs.faults import fault
from extensions.programs.tool_calls import catalog_of
from extensions.tools.errors import ToolNotFound

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

MAX_TOOLS = 128
"""Tools of one constraint."""


async def resolved(constrain: Any, scope: RunScope) -> Any:
    """A constraint with its tools looked up; any other as it is.

    Raises:
        ValueError: The tools are not what they must be (`constraint_invalid`).
        LookupError: One of them is not there (`tool_not_found`).
    """
    if not isinstance(constrain, Mapping) or "tools" not in constrain:
        return constrain
    if len(constrain) != 1:
        raise fault("constraint_invalid", "a constraint by 'tools' has no other key")
    tools = constrain["tools"]
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence) or not 1 <= len(tools) <= MAX_TOOLS:
        raise fault("constraint_invalid", f"tools must be a list of 1 to {MAX_TOOLS} names or functions")
    schemas = dict([await _schema(one, scope) for one in tools])
    if len(schemas) != len(tools):
        raise fault("constraint_invalid", "tools names one of them twice")
    source = call_grammar(schemas, is_parallel=True, may_be_single=True)
    spec = ConstraintSpec(kind=ConstraintKind.LARK, source=source, param="constrain")
    return ScriptConstraint(spec, tuple(schemas))


async def _schema(tool: object, scope: RunScope) -> tuple[str, dict[str, Any] | None]:
    """Name and schema of one tool: a function as OpenAI spells it, one of the request, or one of the server."""
    if isinstance(tool, Mapping):
        return _function(tool)
    if not isinstance(tool, str) or not tool:
        raise fault("constraint_invalid", "tools must be a list of names or functions")
    for given in scope.request.tools:
        if given.get("function", {}).get("name") == tool:
            return _function(given)
    if scope.world.tools is None:
        raise ToolNotFound(f"there is no tool {tool[:200]!r}: the request offers none of that name", tool)
    info = await catalog_of(scope).find(tool)
    return info.name, dict(info.parameters)


def _function(tool: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum() or len(name) > 64:
        raise fault("constraint_invalid", "a function needs a name of 1 to 64 letters, digits, '_' or '-'")
    parameters = function.get("parameters")
    if parameters is None:
        return name, None
    if (problem := schema_error(parameters)) is not None:
        raise fault("constraint_invalid", f"the parameters of {name} are no JSON Schema of an object: {problem}")
    return name, json.loads(json.dumps(parameters))
