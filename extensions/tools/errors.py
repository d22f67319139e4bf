"""Errors of tools.

    ToolError                     each has a stable `code` and says if a retry can help
    ├── ToolInvalid               a description of a tool or a server is not what it must be; says which field
    ├── ToolNotFound              nothing of that name is there for this caller
    ├── ToolArgumentsInvalid      the caller's fault: arguments do not fit the tool's schema; nothing was sent
    ├── ToolDenied                the caller may not do this; nothing was sent
    ├── EgressDenied              the address is not one that the server may talk to; nothing was sent
    ├── ToolTimeout               no answer in time, and nothing can have happened that must not happen twice
    ├── ToolOutcomeUnknown        no answer, and the tool may have done its work: never repeated without being asked
    └── ToolFailed                the tool could not be reached, or what it sent is no answer

A tool that answers "this did not work" has answered: that is a `ToolResult` with `is_error`. No message holds a secret.
"""

from __future__ import annotations

from typing import ClassVar

from extensions.errors import ExtensionError


class ToolError(ExtensionError):
    """Something about a tool.

    Attributes:
        code: Stable name of what happened.
        can_retry: The same again may succeed later, and does no harm.
    """

    code: ClassVar[str] = "tool_failed"
    can_retry: ClassVar[bool] = False


class ToolInvalid(ToolError):
    """A description of a tool or a server that cannot be.

    Attributes:
        param: Path of the field at fault, such as `http.url`; empty for the whole.
    """

    code = "invalid_argument"

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class ToolNotFound(ToolError):
    """There is no such tool, or none for this caller.

    Attributes:
        name: What was asked for.
    """

    code = "tool_not_found"

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class ToolArgumentsInvalid(ToolError):
    """Arguments that do not fit the tool's schema.

    Attributes:
        param: Path of the argument at fault, such as `arguments.city`.
    """

    code = "invalid_argument"

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class ToolDenied(ToolError):
    """Not allowed."""

    code = "tool_denied"


class EgressDenied(ToolError):
    """Not an address to talk to.

    Attributes:
        detail: The same for operators: it may tell what a name stands for inside.
    """

    code = "egress_denied"

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


class ToolTimeout(ToolError):
    """No answer in time; to try again does no harm."""

    code = "tool_timeout"
    can_retry = True


class ToolOutcomeUnknown(ToolError):
    """The tool was called and did not answer: what it has done is not known."""

    code = "tool_outcome_unknown"


class ToolFailed(ToolError):
    """No answer that could be used."""

    code = "tool_failed"
