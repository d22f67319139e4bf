"""One call of a tool that this server makes for the model: from what the model wrote to what the model is told."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from extensions.tools.catalog import REPEATABLE, ToolCaller, ToolResult
from extensions.tools.errors import (
    EgressDenied,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolError,
    ToolFailed,
    ToolOutcomeUnknown,
    ToolTimeout,
)
from gateway.errors import BadRequest
from gateway.schemas.base import parse_json
from gateway.schemas.items import new_id
from gateway.tools.offers import Offer, ToolDoor
from gateway.tools.watched import TOOL_ERROR

CallStatus = Literal["in_progress", "completed", "failed", "incomplete"]

NOT_RUN = "max_tool_calls"
"""Code of a call that was not made, as the answer had made as many as it may."""

LATE = "max_tool_time"
"""Code of a call that was not made, as the answer's time for calls was over."""

CUT = "max_output_tokens"
"""Code of a call that was not made, as the model's text was cut by its length limit."""

_ASKED = frozenset({ToolOutcomeUnknown.code, ToolFailed.code})
"""Codes of calls without an answer whose tool may have been asked."""

_UNKNOWN = "Its outcome is not known: it may have done its work. Do not call it again without asking the user."


@dataclass(frozen=True, slots=True)
class CallError:
    """Why a call has no result.

    Attributes:
        code: Stable name.
        message: For people and for the model.
    """

    code: str
    message: str


@dataclass(kw_only=True, slots=True)
class ServerCall:
    """A call that the model asked for.

    Attributes:
        call_id: What ties the result to the call in the conversation.
        offer: Which tool.
        index: Its place among the calls of the whole answer.
        id: What clients know it by.
        arguments: JSON text as the model wrote it.
        status: How far it is.
        output: What the tool said.
        error: Why it said nothing, or that it did not work.
        ms: How long it took.
        approval_id: Of the request that a person has answered.
    """

    call_id: str
    offer: Offer
    index: int
    id: str = field(default_factory=lambda: new_id("mcp"))
    arguments: str = ""
    status: CallStatus = "in_progress"
    output: str | None = None
    error: CallError | None = None
    ms: float = 0.0
    approval_id: str | None = None

    @property
    def is_done_for_good(self) -> bool:
        """Whether the tool may have done what must not be done again."""
        was_asked = self.output is not None or (self.error is not None and self.error.code in _ASKED)
        return was_asked and self.offer.spec.effect not in REPEATABLE

    @property
    def told(self) -> str:
        """What the model is told of it."""
        if self.output is not None:
            return f"error: {self.output}" if self.error is not None else self.output
        assert self.error is not None
        ending = f" {_UNKNOWN}" if self.error.code == ToolOutcomeUnknown.code else ""
        return f"error: {self.error.code}: {self.error.message}{ending}"

    def leave(self, code: str, message: str) -> None:
        """Says that it is not made at all."""
        self.status, self.output, self.error = "incomplete", None, CallError(code, message)

    def take(self, result: ToolResult) -> None:
        """Says what the tool answered."""
        self.output = result.text
        self.status = "failed" if result.is_error else "completed"
        if result.is_error:
            self.error = CallError(TOOL_ERROR, "The tool says that it did not work.")

    def fail(self, error: ToolError) -> None:
        """Says that there is no answer."""
        self.status = "incomplete" if isinstance(error, ToolOutcomeUnknown) else "failed"
        self.error = CallError(error.code, error.message)

    def shown(self) -> dict[str, Any]:
        """The call as clients of chats see it."""
        error = None if self.error is None else {"code": self.error.code, "message": self.error.message}
        return {
            "id": self.call_id,
            "server_label": self.offer.label,
            "name": self.offer.name,
            "arguments": self.arguments,
            "status": self.status,
            "output": self.output,
            "error": error,
            "ms": round(self.ms, 3),
        }

    def outcome(self) -> dict[str, Any]:
        """What is kept of it, to be told again instead of being made again."""
        error = None if self.error is None else [self.error.code, self.error.message]
        return {"status": self.status, "output": self.output, "error": error, "ms": self.ms}

    def recall(self, outcome: dict[str, Any]) -> None:
        """Takes what was kept of it."""
        self.status, self.output, self.ms = outcome["status"], outcome["output"], outcome["ms"]
        self.error = None if outcome["error"] is None else CallError(*outcome["error"])


def operation_id(scope: str, call: ServerCall) -> str:
    """Names one piece of work for whoever does it: the same again is told from a second order."""
    offer = call.offer
    index = str(call.index) if call.approval_id is None else ""  # one approval is for one call
    parts = (scope, index, offer.label or "", offer.name, call.arguments)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


async def run_call(call: ServerCall, door: ToolDoor, caller: ToolCaller, operation: str) -> None:
    """Makes a call; whatever comes of it, the model is told and the answer goes on. Cancelling ends the call."""
    started_s = time.perf_counter()
    try:
        arguments = read_arguments(call.arguments)
        call.take(await door.call(call.offer.spec, arguments, operation_id=operation, caller=caller))
    except ToolError as error:
        call.fail(error)
    finally:
        call.ms = (time.perf_counter() - started_s) * 1000


def read_arguments(text: str) -> dict[str, Any]:
    """Arguments as the model wrote them.

    Raises:
        ToolArgumentsInvalid: They are no JSON object.
    """
    try:
        return parse_json(text.encode() or b"{}")
    except (BadRequest, UnicodeEncodeError):
        raise ToolArgumentsInvalid("the arguments are no JSON object", "arguments") from None


def error_item(call: ServerCall) -> dict[str, Any] | None:
    """The error of a call as items of the Responses API spell it."""
    error = call.error
    if error is None:
        return None
    if error.code == TOOL_ERROR:
        return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": call.output or ""}]}
    kind, number = _NUMBERS.get(error.code, ("mcp_protocol_error", _SERVER_ERROR))
    return {"type": kind, "code": number, "message": f"{error.code}: {error.message}"}


_SERVER_ERROR = -32000
_NUMBERS: dict[str, tuple[str, int]] = {
    ToolArgumentsInvalid.code: ("mcp_protocol_error", -32602),
    ToolTimeout.code: ("mcp_protocol_error", -32001),
    ToolOutcomeUnknown.code: ("mcp_protocol_error", -32001),
    ToolDenied.code: ("http_error", 403),
    EgressDenied.code: ("http_error", 403),
}
"""Kinds and numbers of errors, as JSON-RPC, MCP's SDKs and HTTP have them."""
