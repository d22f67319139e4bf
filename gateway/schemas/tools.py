"""Tool definitions, and what `tool_choice` makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.errors import BadRequest
from gateway.schemas.base import WireModel

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class FunctionDefinition(WireModel):
    """A function that the model may call; `parameters` is a JSON Schema.

    Attributes:
        strict: Hold arguments to the schema, and refuse one that cannot be enforced to the letter.
    """

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    """One tool of a request."""

    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates know it."""
        return self.model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call.

    Attributes:
        tools: Those that the model is told of; none if it may call none.
        is_forced: The answer must be a call.
        names_one: The client named the one function that must be called.
    """

    tools: tuple[Tool, ...] = ()
    is_forced: bool = False
    names_one: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools, each once."""
        return tuple(dict.fromkeys(tool.function.name for tool in self.tools))

    @property
    def is_strict(self) -> bool:
        """Arguments of one of them at least must match its schema."""
        return any(tool.function.strict for tool in self.tools)


def tool_use(choice: str | dict[str, Any] | None, tools: list[Tool]) -> ToolUse:
    """What a request's `tool_choice` makes of its `tools`.

    Raises:
        BadRequest: The choice is unknown, names no given tool, or asks for a call where there are no tools.
    """
    if choice == "none":
        return ToolUse()
    if choice is None or choice == "auto":
        return ToolUse(tuple(tools))
    if not tools:
        raise BadRequest("'tool_choice' asks for a call but the request has no 'tools'.", "tool_choice")
    if choice == "required":
        return ToolUse(tuple(tools), is_forced=True)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and kind == "function":
        return ToolUse(_named(_name(choice, "tool_choice"), tools), is_forced=True, names_one=True)
    if isinstance(choice, dict) and kind == "allowed_tools":
        return _allowed(choice, tools)
    raise BadRequest(
        "'tool_choice' must be 'none', 'auto', 'required', or an object that names a function or allowed tools.",
        "tool_choice",
    )


def _allowed(choice: dict[str, Any], tools: list[Tool]) -> ToolUse:
    # Chat completions nest the fields, responses do not; both mean the same.
    at = "tool_choice.allowed_tools" if "allowed_tools" in choice else "tool_choice"
    fields = choice.get("allowed_tools", choice)
    if not isinstance(fields, dict):
        raise BadRequest(f"'{at}' must be an object.", at)
    mode, listed = fields.get("mode") or "auto", fields.get("tools")
    if mode not in ("auto", "required"):
        raise BadRequest(f"'{at}.mode' must be 'auto' or 'required'.", f"{at}.mode")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, dict) for one in listed):
        raise BadRequest(f"'{at}.tools' must be a list of at least one tool.", f"{at}.tools")
    names = {_name(one, f"{at}.tools[{position}]") for position, one in enumerate(listed)}
    given = {tool.function.name for tool in tools}
    for name in sorted(names - given):
        raise BadRequest(f"'{at}.tools' names '{name[:64]}', which is not in 'tools'.", f"{at}.tools")
    return ToolUse(tuple(tool for tool in tools if tool.function.name in names), is_forced=mode == "required")


def _named(name: str, tools: list[Tool]) -> tuple[Tool, ...]:
    found = tuple(tool for tool in tools if tool.function.name == name)
    if not found:
        raise BadRequest(f"'tool_choice' names '{name[:64]}', which is not in 'tools'.", "tool_choice")
    return found[:1]


def _name(choice: dict[str, Any], at: str) -> str:
    """The function that an object names, in the nested form or the flat one."""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if choice.get("type", "function") != "function":
        raise BadRequest(f"'{at}.type' must be 'function'.", f"{at}.type")
    if not isinstance(name, str):
        param = f"{at}.name" if "name" in choice and not isinstance(function, dict) else f"{at}.function.name"
        raise BadRequest(f"'{param}' must be a string.", param)
    return name
