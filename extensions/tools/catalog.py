"""What a caller sees of tools: a catalog of names, calls, and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from extensions.output import Usage

if TYPE_CHECKING:
    from extensions.programs.guard import Guard

Effect = Literal["pure", "idempotent", "once", "irreversible"]
"""What a call does to the world: nothing; the same however often; something each time; something for good."""

ToolKind = Literal["http", "mcp", "script"]

REPEATABLE: frozenset[Effect] = frozenset({"pure", "idempotent"})
"""Effects of tools that may be called again, and before it is sure that their answer is wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolInfo:
    """One tool as callers and models see it; nothing of where it is.

    Attributes:
        name: What it is called by.
        description: For models and people.
        parameters: JSON Schema of its arguments.
        effect: See `Effect`.
        kind: What it is.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: Effect
    kind: ToolKind

    def as_function(self) -> dict[str, Any]:
        """The same in OpenAI's form, for chat templates."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a tool answered. It is text of a stranger: it is shown to models as such, and nothing in it is obeyed.

    Attributes:
        text: The answer as text.
        json: The same as a JSON value, if it is one.
        has_json: Whether it is.
        is_error: The tool says that it did not work.
        is_cut: It was longer than allowed; the rest was not read.
        ms: How long it took, in milliseconds.
    """

    text: str
    json: Any = None
    has_json: bool = False
    is_error: bool = False
    is_cut: bool = False
    ms: float = 0.0

    @property
    def value(self) -> Any:
        """The JSON value, or the text if it is none."""
        return self.json if self.has_json else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCaller:
    """For whom a tool is called.

    Attributes:
        account: Who pays, and whose tools and connections these are.
        salt: Prefix pages are shared only among contexts of the same salt; for tools that are programs.
        run_id: The program's run or the request.
        note: Told what a tool has used that is a program, when that has ended; None if nobody wants to know.
        guard: Of the program that calls: a tool that is a program counts against its limits. None if no program calls.
        may_call: Whether whoever asks may have tools called at all.
    """

    account: str = ""
    salt: str = ""
    run_id: str = ""
    note: Callable[[Usage], None] | None = field(default=None, compare=False, repr=False)
    guard: Guard | None = field(default=None, compare=False, repr=False)
    may_call: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpReply:
    """What a server sent to a program's own request.

    Attributes:
        status: HTTP status.
        headers: Names in lower case; of several of a name the last.
        body: Decoded as its headers say.
        is_cut: It was longer than allowed; the rest was not read.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    is_cut: bool = False


class ToolCatalog(Protocol):
    """The tools that one run may use, bound to whoever pays for it. Made by the gateway; see `World.tools`.

    All of its calls count against the caller's limits, are written down, and raise errors of `extensions.tools.errors`.
    """

    def within(self, guard: Guard) -> ToolCatalog:
        """The same for a program: what tools use that are programs counts against its limits."""
        ...

    async def names(self) -> list[ToolInfo]:
        """All tools of this caller, by name.

        Raises:
            ToolError: The registry cannot be read.
        """
        ...

    async def find(self, name: str) -> ToolInfo:
        """One of them.

        Raises:
            ToolNotFound: There is none of that name.
        """
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        """Calls a tool and waits for its answer.

        Args:
            name: Which.
            arguments: For it; checked against its schema first.
            key: The caller's own name for this piece of work: the same key is the same work, done once.

        Raises:
            ToolError: There is no answer; see the subclasses.
        """
        ...

    async def mcp_tools(self, server: str) -> list[ToolInfo]:
        """The tools of an MCP server, by its label, under their own names.

        Raises:
            ToolError: See the subclasses.
        """
        ...

    async def mcp_call(
        self, server: str, tool: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> ToolResult:
        """Calls a tool of an MCP server.

        Raises:
            ToolError: See the subclasses.
        """
        ...

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
        max_bytes: int,
    ) -> HttpReply:
        """Sends a request of the program's own to a host that the server allows.

        Raises:
            EgressDenied: It does not.
            ToolTimeout: No answer in time to a request that changes nothing (GET, HEAD).
            ToolOutcomeUnknown: No answer in time to another.
            ToolFailed: No answer at all.
        """
        ...
