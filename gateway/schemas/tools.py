"""Tool definitions and tool choice. Until calls can be forced, tools are context for the template and nothing more."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.errors import BadRequest, UnsupportedParameter
from gateway.schemas.base import WireModel


class FunctionDefinition(WireModel):
    """A function that the model may call; `parameters` is a JSON Schema.

    Attributes:
        strict: Shown to the template. Without effect as long as calls are not parsed out of the text.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
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


def check_tool_choice(choice: str | dict[str, Any] | None, tools: list[Tool]) -> bool:
    """Says whether the template is to see the tools.

    Raises:
        BadRequest: The choice is unknown, names no given tool, or asks for a call where there are no tools.
        UnsupportedParameter: The choice demands a call, which is not enforced yet.
    """
    if choice is None or choice == "auto":
        return bool(tools)
    if choice == "none":
        return False
    if not tools:
        raise BadRequest("'tool_choice' asks for a call but the request has no 'tools'.", "tool_choice")
    if choice == "required":
        raise UnsupportedParameter("tool_choice")
    name = _chosen_name(choice)
    if name is not None and name not in {tool.function.name for tool in tools}:
        raise BadRequest(f"'tool_choice' names '{name[:64]}', which is not in 'tools'.", "tool_choice")
    raise UnsupportedParameter("tool_choice")


def _chosen_name(choice: str | dict[str, Any]) -> str | None:
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "allowed_tools"):
        raise BadRequest(
            "'tool_choice' must be 'none', 'auto', 'required', or an object that names a function.", "tool_choice"
        )
    if choice["type"] == "allowed_tools":
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise BadRequest("'tool_choice.function.name' must be a string.", "tool_choice.function.name")
    return name
