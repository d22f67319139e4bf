"""Errors of the server as a script meets them: built-in exceptions whose text is `code: what happened`.

A sandbox knows no exception classes but Python's own, so the code in the text is what a script can tell them by.
Outside the sandbox the same errors are typed again.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.errors import (
    EngineStopped,
    InvalidRequest,
    LeaseLost,
    OutOfPages,
    QuotaExceeded,
    ResourceExhausted,
    SequenceNotFound,
)
from engine.text.errors import InvalidText, TemplateError, TextTooLong
from extensions.tools.errors import ToolError

CODES: dict[str, type[Exception]] = {
    "invalid_argument": ValueError,
    "constraint_invalid": ValueError,
    "program_invalid": ValueError,
    "kv_exhausted": MemoryError,
    "limit_exceeded": MemoryError,
    "receive_timeout": TimeoutError,
    "tool_timeout": TimeoutError,
    "tool_denied": PermissionError,
    "egress_denied": PermissionError,
    "capability_denied": PermissionError,
    "tool_not_found": LookupError,
    "tool_failed": RuntimeError,
    "tool_outcome_unknown": RuntimeError,
    "extension_not_found": LookupError,
    "prefix_not_found": LookupError,
    "fingerprint_mismatch": ValueError,
    "prefix_lost": RuntimeError,
    "server_busy": RuntimeError,
    "capability_missing": RuntimeError,
    "context_lost": RuntimeError,
    "quota_exceeded": RuntimeError,
    "lease_revoked": RuntimeError,
    "child_failed": RuntimeError,
    "store_unavailable": RuntimeError,
}
"""Every code that a script can meet, and the built-in that carries it."""

_MAX_REMEMBERED = 256
_MAX_CHARS = 2000


class RunEnded(Exception):
    """The run is over already; what is still called in it ends with this."""


def fault(code: str, message: str) -> Exception:
    """The exception that carries a code into the sandbox."""
    return CODES[code](f"{code}: {message}"[:_MAX_CHARS])


def invalid(message: str) -> ValueError:
    """What a script gets for an argument that cannot be."""
    return ValueError(f"invalid_argument: {message}"[:_MAX_CHARS])


def code_of(error: BaseException) -> str | None:
    """The code in an exception's text, if there is one of ours."""
    code, colon, _ = str(error).partition(": ")
    return code if colon and CODES.get(code) is type(error) else None


def to_fault(error: Exception) -> Exception | None:
    """What a script sees of an error of the server; None for one that is not the script's to handle."""
    if isinstance(error, EngineStopped):
        return None
    if code_of(error) is not None or type(error) in (TypeError, AttributeError):
        return error
    message = str(getattr(error, "message", error))
    if isinstance(error, ToolError):
        return fault(error.code, message)
    if isinstance(error, InvalidRequest):
        is_about_form = error.param in ("constrain", "constraint")
        return fault("constraint_invalid" if is_about_form else "invalid_argument", message)
    if isinstance(error, OutOfPages):
        return fault("kv_exhausted", message)
    if isinstance(error, LeaseLost):
        return fault("lease_revoked", message)
    if isinstance(error, QuotaExceeded):
        return fault("quota_exceeded", message)
    if isinstance(error, ResourceExhausted):
        return fault("server_busy", message)
    if isinstance(error, SequenceNotFound):
        return fault("context_lost", message)
    if isinstance(error, InvalidText | TemplateError | TextTooLong | ValueError | OverflowError):
        return invalid(message)
    return None


class FaultLog:
    """Which errors of the server a run met, so that one that its script does not catch is known again by its text."""

    def __init__(self) -> None:
        self._causes: OrderedDict[str, Exception] = OrderedDict()

    def note(self, crossing: Exception, cause: Exception) -> None:
        """Takes down what entered the sandbox and what it stands for."""
        self._causes[str(crossing)] = cause
        if len(self._causes) > _MAX_REMEMBERED:
            self._causes.popitem(last=False)

    def cause_of(self, uncaught: BaseException) -> Exception | None:
        """The error that an exception from inside the sandbox stands for."""
        return self._causes.get(str(uncaught))
