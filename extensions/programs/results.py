"""What `main` returned, to an answer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from extensions.errors import ScriptError, ScriptLimitExceeded
from extensions.programs.request import ProgramOutcome
from extensions.programs.scope import RunScope

_MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "reasoning_content", "refusal"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """A result, taken apart.

    Attributes:
        content: The whole text of the answer; None if there is none.
        rest: Text that has not been sent yet.
        message: The other parts of a message.
        result: What is neither text nor message.
    """

    content: str | None
    rest: str
    message: dict[str, Any] | None
    result: Any

    def outcome(self, scope: RunScope, logs: str) -> ProgramOutcome:
        """All that a run has to say."""
        return ProgramOutcome(
            content=self.content,
            message=self.message,
            result=self.result,
            finish_reason=self._finish_reason(scope),
            exec_path=scope.paths.path,
            exec_reason=scope.paths.reason,
            usage=scope.guard.usage,
            logs=logs,
        )

    def _finish_reason(self, scope: RunScope) -> Literal["stop", "length", "tool_calls"]:
        if self.message is not None and self.message.get("tool_calls"):
            return "tool_calls"
        text, reason = scope.last_finish
        return "length" if reason == "length" and self.content == text else "stop"


def read_result(text: str, scope: RunScope) -> Read:
    """Reads what `main` returned.

    Raises:
        ScriptError: It is no JSON, or a message whose parts are not what they must be.
        ScriptLimitExceeded: It is too large.
    """
    limits = scope.guard.limits
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.result_bytes:
        raise ScriptLimitExceeded("result_bytes", num_bytes, limits.result_bytes)
    value = _decoded(text)
    emitted = "".join(scope.emitted)
    if isinstance(value, str):
        return _answer(value, emitted, None)
    if isinstance(value, dict) and _is_message(value):
        _check_parts(value)
        content = value.get("content")
        parts = {key: item for key, item in value.items() if key not in ("content", "role") and item is not None}
        if "tool_calls" in parts:
            parts["tool_calls"] = [_call(call, at) for at, call in enumerate(parts["tool_calls"])]
        return _answer(content, emitted, parts or None)
    return Read(content=emitted or None, rest="", message=None, result=value)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ScriptError("ValueError", f"main returned what is no JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _answer(returned: str | None, emitted: str, message: dict[str, Any] | None) -> Read:
    """Text that was sent while it was made is not sent again, whether all of it was returned or the end is new."""
    if returned is None:
        return Read(content=emitted or None, rest="", message=message, result=None)
    if emitted and emitted.rstrip().endswith(returned.strip()):
        rest = ""
    elif returned.startswith(emitted):
        rest = returned[len(emitted) :]
    else:
        rest = returned
    return Read(content=emitted + rest, rest=rest, message=message, result=None)


def _is_message(value: dict[str, Any]) -> bool:
    return bool(value) and value.keys() <= _MESSAGE_KEYS and ("content" in value or "tool_calls" in value)


def _check_parts(value: dict[str, Any]) -> None:
    for key in ("content", "reasoning_content", "refusal"):
        if not isinstance(value.get(key), str | None):
            reason = f"main returned a message whose {key} is no text; what is no message needs a key of another name"
            raise ScriptError("ValueError", reason, code="result_invalid")
    if not isinstance(value.get("tool_calls"), list | None):
        raise ScriptError("ValueError", "main returned a message whose tool_calls are no list", code="result_invalid")


def _call(call: object, at: int) -> dict[str, Any]:
    """A tool call in OpenAI's form; a script may give name and arguments alone."""
    if isinstance(call, Mapping):
        function = call.get("function", call)
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str) and name:
            arguments = function.get("arguments", {})
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            call_id = call.get("id")
            return {
                "id": call_id if isinstance(call_id, str) and call_id else f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": name, "arguments": text},
            }
    raise ScriptError(
        "ValueError", f"main returned a message whose tool_calls[{at}] has no name", code="result_invalid"
    )
