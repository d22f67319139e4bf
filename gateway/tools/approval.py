"""Which calls need a person's yes: what the registry demands, then what a request asks, then what a tool does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from extensions.tools.catalog import Effect
from extensions.tools.errors import ToolInvalid

Rule = Literal["always", "never"]

_FORM = "it must be 'always', 'never', or an object with lists of names under 'always' and 'never'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Approval:
    """What one side says of a tool or of a server's tools.

    Attributes:
        rule: Of tools that are not named; None leaves them to others.
        always: Tools that need it.
        never: Tools that do not.
        read_only: What holds for tools that change nothing, if they are told apart.
    """

    rule: Rule | None = None
    always: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    read_only: Rule | None = None

    @classmethod
    def from_wire(cls, data: object, param: str = "require_approval") -> Approval:
        """Reads `always`, `never`, or lists of names for each.

        Raises:
            ToolInvalid: It is none of these.
        """
        if data is None:
            return cls()
        if data == "always" or data == "never":
            return cls(rule=data)
        if not isinstance(data, Mapping) or not data.keys() <= {"always", "never"}:
            raise ToolInvalid(f"{param}: {_FORM}", param)
        names = {key: _names(value, f"{param}.{key}") for key, value in data.items()}
        both = names.get("always", frozenset()) & names.get("never", frozenset())
        if both:
            raise ToolInvalid(f"{param} names {min(both)!r} under both 'always' and 'never'", param)
        return cls(always=names.get("always", frozenset()), never=names.get("never", frozenset()))

    def to_wire(self) -> Any:
        """The same as plain data; None where nothing is said."""
        if not self.always and not self.never:
            return self.rule
        return {"always": sorted(self.always), "never": sorted(self.never)}

    def of(self, tool: str, effect: Effect) -> Rule | None:
        """What is said of one tool."""
        if tool in self.always:
            return "always"
        if tool in self.never:
            return "never"
        if self.read_only is not None and effect == "pure":
            return self.read_only
        return self.rule


def needs_approval(tool: str, effect: Effect, registered: Approval, asked: Approval | None = None) -> bool:
    """Whether a person is asked before a call: a request may demand more than the registry, never less.

    Args:
        tool: Its own name.
        effect: What it does to the world.
        registered: What whoever registered it says.
        asked: What the request says.
    """
    mine = registered.of(tool, effect)
    if mine == "always":
        return True
    theirs = None if asked is None else asked.of(tool, effect)
    return (theirs or mine or ("never" if effect == "pure" else "always")) == "always"


def _names(value: object, param: str) -> frozenset[str]:
    # OpenAI wraps the list: {"always": {"tool_names": [...]}}.
    if isinstance(value, Mapping) and value.keys() == {"tool_names"}:
        value = value["tool_names"]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ToolInvalid(f"{param} must be a list of names", param)
    return frozenset(value)
