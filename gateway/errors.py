"""Errors of the gateway, and what each error class of Wye looks like on the wire.

    GatewayError
    ├── BadRequest                the caller's fault, 400; `param` names the field
    │   ├── UnsupportedParameter  a field whose meaning we cannot honour; never silently ignored
    │   └── PromptTooLong         longer than the context, seen before it was tokenised
    ├── AuthenticationError       no key or a wrong one, 401
    ├── PermissionDenied          the key is known, but not for this, 403
    ├── LimitReached              429; says which limit, whose, and when to come back
    │   ├── RateLimited           requests or tokens per minute, requests at once, resident memory
    │   ├── QuotaExhausted        the KV quota of a window is used up
    │   └── QuotaHeld             what is left of it is held by the tenant's own running work
    ├── ModelNotFound             no model of that name is served, 404
    ├── NotFound                  nothing of that id is kept here, or it is somebody else's, 404
    ├── ExtensionConflict         another program has that name and version, 409
    ├── ToolConflict              the operator has a tool of that name, 409
    ├── CallInProgress            the approved call is being made, or was and nobody knows what came of it, 409
    ├── FingerprintMismatch       another model made the prefix, 409
    ├── PrefixLost                the prefix's time is over, or its KV is gone and is not to be computed again, 410
    ├── PreconditionFailed        If-Match names an older state of it, 412
    ├── BodyTooLarge              the body exceeds the limit, 413
    ├── UnsupportedMediaType      the body is not JSON, or compressed in a way we do not read, 415
    ├── Conflict                  it has been changed by somebody else meanwhile, or is there already, 409
    ├── StoreUnavailable          no store for what outlives a request, or it does not answer, 503
    │   └── QuotaStoreUnavailable the same of tenants, keys and quotas: nothing is admitted without it
    ├── NotReady                  no engine yet, or shutting down, 503; trying later can help
    └── ClientGone                the client closed the connection; nobody reads the answer (499 in logs)

`TABLE` gives status, type and code for every class; `to_reply` turns any exception into what a client sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from engine.errors import (
    ContextTooLong,
    EngineStopped,
    InvalidRequest,
    LeaseLost,
    QuotaExceeded,
    ResourceExhausted,
    UnknownAdapter,
    UnsupportedReadout,
)
from engine.text.errors import InvalidText, TemplateError, TextTooLong
from extensions.errors import (
    ArgumentsInvalid,
    CapabilityMissing,
    Diagnostic,
    NotResumable,
    ProgramInvalid,
    ReplayDiverged,
    RunCancelled,
    SandboxUnavailable,
    ScriptCrashed,
    ScriptError,
    ScriptLimitExceeded,
)
from extensions.tools.errors import (
    EgressDenied,
    ToolArgumentsInvalid,
    ToolDenied,
    ToolFailed,
    ToolInvalid,
    ToolNotFound,
    ToolOutcomeUnknown,
    ToolTimeout,
)

MAX_MESSAGE_CHARS = 1024
"""Error messages are cut here unless told otherwise: a client must not get its own megabytes back."""

CONTEXT_CODE = "context_length_exceeded"
"""Code of every prompt that does not fit; clients shorten their history when they meet it."""

OF_RUN = "wye_of_run"
"""Set on an error to the id of the detached run that it is of: the run can be read although its answer cannot."""

RUN_HEADER = "x-run-id"
"""Response header with the id of a run that goes on when its client leaves."""

REPEATS_HARM = "wye_repeats_harm"
"""Set on an error of a request that has done what must not be done twice: clients are told not to try again."""

MAX_PARAM_CHARS = 200
"""Longest path of a field in an error."""


class GatewayError(Exception):
    """Root of what the gateway raises.

    Attributes:
        message: For people.
        param: Path of the field at fault, or None.
        code: Overrides the table's code if not None.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class BadRequest(GatewayError):
    """The request cannot be served as it stands."""


class UnsupportedParameter(BadRequest):
    """A field asks for what this server cannot do."""

    def __init__(self, param: str, reason: str | None = None) -> None:
        super().__init__(reason or f"'{param}' is not supported by this server.", param)


class PromptTooLong(BadRequest):
    """The prompt has more bytes than the context could hold even with the longest tokens.

    Attributes:
        limit_tokens: Most tokens of one sequence here.
        num_tokens_at_least: The least number of tokens the text can have.
    """

    def __init__(self, limit_tokens: int, num_tokens_at_least: int, param: str) -> None:
        super().__init__(
            f"This model's maximum context length is {limit_tokens} tokens. However, you requested at least "
            f"{num_tokens_at_least} in the prompt. Please reduce the length of the prompt.",
            param,
        )
        self.limit_tokens = limit_tokens
        self.num_tokens_at_least = num_tokens_at_least


class AuthenticationError(GatewayError):
    """No API key, or one that is not known."""


class PermissionDenied(GatewayError):
    """The key is known, but it may not do this."""


class LimitReached(GatewayError):
    """A limit of a tenant or key is reached; nothing was begun.

    Attributes:
        details: Which limit, whose, how much of it is used: added to the error's object.
        headers: What tells clients when to come back.
    """

    def __init__(self, message: str, details: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(message)
        self.details = details
        self.headers = headers


class RateLimited(LimitReached):
    """A limit that lasts for a moment: requests or tokens per minute, requests at once, resident memory."""


class QuotaExhausted(LimitReached):
    """The KV quota of a window is used up."""


class QuotaHeld(LimitReached):
    """What is left of the KV quota is held by the tenant's own running work."""


class ModelNotFound(GatewayError):
    """No model of that name is served here."""

    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{_cut(model, 200)}' does not exist on this server.", "model")


class NotFound(GatewayError):
    """Nothing of that id is stored here for the caller."""


class ExtensionConflict(GatewayError):
    """Another program is registered under this name and version; versions never change."""


class ToolConflict(GatewayError):
    """The operator has a tool of this name; it cannot be replaced."""


class CallInProgress(GatewayError):
    """The approved call has been begun before and has no result: it is not made again."""


class FingerprintMismatch(GatewayError):
    """The prefix was made by another model or adapter: its KV means nothing to this one."""


class PrefixLost(GatewayError):
    """The prefix was there; its time is over, or its KV is gone and was not to be computed again."""


class PreconditionFailed(GatewayError):
    """It is not in the state that the request names."""


class BodyTooLarge(GatewayError):
    """The request body is larger than allowed."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.")


class UnsupportedMediaType(GatewayError):
    """The body is of a kind or compression that is not read here."""


class NotReady(GatewayError):
    """The server does not take requests at the moment."""


class StoreUnavailable(GatewayError):
    """What is to be kept or looked up cannot be: no Redis, or it does not answer."""


class QuotaStoreUnavailable(StoreUnavailable):
    """Tenants, keys and quotas cannot be looked up; nothing is admitted without that."""


class Conflict(GatewayError):
    """Something of that name is there already, or it has been changed meanwhile."""


class ClientGone(GatewayError):
    """The client closed the connection; nobody reads an answer."""

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """How one class of errors looks on the wire.

    Attributes:
        status: HTTP status.
        type: OpenAI error type.
        code: OpenAI error code, or None.
        retry_after: Whether to tell the client when to come back.
    """

    status: int
    type: str
    code: str | None
    retry_after: bool = False


TABLE: dict[type[Exception], ErrorSpec] = {
    UnsupportedParameter: ErrorSpec(400, "invalid_request_error", "unsupported_parameter"),
    PromptTooLong: ErrorSpec(400, "invalid_request_error", CONTEXT_CODE),
    BadRequest: ErrorSpec(400, "invalid_request_error", None),
    AuthenticationError: ErrorSpec(401, "invalid_request_error", "invalid_api_key"),
    PermissionDenied: ErrorSpec(403, "invalid_request_error", "permission_denied"),
    LimitReached: ErrorSpec(429, "rate_limit_error", "rate_limit_exceeded"),
    RateLimited: ErrorSpec(429, "rate_limit_error", "rate_limit_exceeded"),
    QuotaExhausted: ErrorSpec(429, "insufficient_quota", "kv_quota_exceeded"),
    QuotaHeld: ErrorSpec(429, "rate_limit_error", "kv_quota_held"),
    ModelNotFound: ErrorSpec(404, "invalid_request_error", "model_not_found"),
    NotFound: ErrorSpec(404, "invalid_request_error", "not_found"),
    ExtensionConflict: ErrorSpec(409, "invalid_request_error", "version_exists"),
    ToolConflict: ErrorSpec(409, "invalid_request_error", "tool_exists"),
    CallInProgress: ErrorSpec(409, "invalid_request_error", "tool_call_in_progress"),
    FingerprintMismatch: ErrorSpec(409, "invalid_request_error", "fingerprint_mismatch"),
    PrefixLost: ErrorSpec(410, "invalid_request_error", "prefix_lost"),
    PreconditionFailed: ErrorSpec(412, "invalid_request_error", "precondition_failed"),
    BodyTooLarge: ErrorSpec(413, "invalid_request_error", "request_too_large"),
    UnsupportedMediaType: ErrorSpec(415, "invalid_request_error", "unsupported_media_type"),
    Conflict: ErrorSpec(409, "invalid_request_error", "conflict"),
    QuotaStoreUnavailable: ErrorSpec(503, "server_error", "quota_store_unavailable", retry_after=True),
    StoreUnavailable: ErrorSpec(503, "server_error", "store_unavailable", retry_after=True),
    NotReady: ErrorSpec(503, "server_error", "server_is_overloaded", retry_after=True),
    ClientGone: ErrorSpec(499, "invalid_request_error", "client_closed_request"),
    ClientDisconnect: ErrorSpec(499, "invalid_request_error", "client_closed_request"),
    ContextTooLong: ErrorSpec(400, "invalid_request_error", CONTEXT_CODE),
    UnknownAdapter: ErrorSpec(404, "invalid_request_error", "model_not_found"),
    UnsupportedReadout: ErrorSpec(400, "invalid_request_error", "unsupported_parameter"),
    InvalidRequest: ErrorSpec(400, "invalid_request_error", None),
    InvalidText: ErrorSpec(400, "invalid_request_error", None),
    TextTooLong: ErrorSpec(400, "invalid_request_error", CONTEXT_CODE),
    TemplateError: ErrorSpec(400, "invalid_request_error", "invalid_messages"),
    LeaseLost: ErrorSpec(409, "invalid_request_error", "lease_revoked"),
    QuotaExceeded: ErrorSpec(429, "insufficient_quota", "kv_quota_exceeded"),
    ResourceExhausted: ErrorSpec(503, "server_error", "server_is_overloaded", retry_after=True),
    EngineStopped: ErrorSpec(503, "server_error", "engine_stopped", retry_after=True),
    ProgramInvalid: ErrorSpec(400, "invalid_request_error", "program_invalid"),
    CapabilityMissing: ErrorSpec(400, "invalid_request_error", "capability_missing"),
    ArgumentsInvalid: ErrorSpec(400, "invalid_request_error", "invalid_argument"),
    ScriptError: ErrorSpec(400, "extension_error", "extension_error"),
    ScriptLimitExceeded: ErrorSpec(400, "extension_error", "limit_exceeded"),
    ScriptCrashed: ErrorSpec(503, "server_error", "script_crashed", retry_after=True),
    RunCancelled: ErrorSpec(503, "server_error", "run_cancelled", retry_after=True),
    SandboxUnavailable: ErrorSpec(503, "server_error", "sandbox_unavailable", retry_after=True),
    ReplayDiverged: ErrorSpec(503, "server_error", "replay_diverged"),
    NotResumable: ErrorSpec(503, "server_error", "run_not_resumable"),
    ToolInvalid: ErrorSpec(400, "invalid_request_error", "invalid_argument"),
    ToolArgumentsInvalid: ErrorSpec(400, "invalid_request_error", "invalid_argument"),
    ToolNotFound: ErrorSpec(404, "invalid_request_error", "tool_not_found"),
    ToolDenied: ErrorSpec(403, "invalid_request_error", "tool_denied"),
    EgressDenied: ErrorSpec(403, "invalid_request_error", "egress_denied"),
    # 424 and not 5xx: clients repeat those by themselves, and what a tool has done must not be done twice.
    ToolTimeout: ErrorSpec(424, "external_connector_error", "tool_timeout"),
    ToolOutcomeUnknown: ErrorSpec(424, "external_connector_error", "tool_outcome_unknown"),
    ToolFailed: ErrorSpec(424, "external_connector_error", "tool_failed"),
}
"""Most specific class first counts; anything else is an internal error."""

INTERNAL = ErrorSpec(500, "server_error", "internal_error")
"""A bug: the client learns nothing but that."""

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 431: "request_head_too_large"}


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """One error as a client sees it.

    Attributes:
        status: HTTP status.
        body: The JSON object, with the one key `error`.
        headers: To add to the response.
    """

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


def to_reply(
    error: Exception,
    *,
    retry_after_s: int = 1,
    max_message_chars: int = MAX_MESSAGE_CHARS,
) -> ErrorReply:
    """What a client sees of `error`.

    Args:
        error: Anything raised while a request was served.
        retry_after_s: Value of `Retry-After` where one is sent.
        max_message_chars: The message is cut here.
    """
    if isinstance(error, HTTPException):
        return _http_reply(error)
    spec = _spec(error)
    message = "The server had an error while processing the request."
    param, code = None, spec.code
    headers = {"Retry-After": str(retry_after_s)} if spec.retry_after else {}
    if spec is INTERNAL:
        headers["x-should-retry"] = "false"
    else:
        message = str(getattr(error, "message", error))
        param = getattr(error, "param", None) or None
        code = getattr(error, "code", None) or code
    if code == CONTEXT_CODE:
        # Clients that see the message alone (LangChain, by openai-python 3) look for the code there.
        message += f" ({code})"
    if spec.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, LimitReached):
        headers |= error.headers
    if (run_id := getattr(error, OF_RUN, None)) is not None:
        headers[RUN_HEADER] = run_id
    if getattr(error, REPEATS_HARM, False):
        headers.pop("Retry-After", None)
        headers["x-should-retry"] = "false"
    body = _body(_cut(message, max_message_chars), spec.type, param, code)
    body["error"] |= _details(error, max_message_chars)
    if run_id is not None:
        body["error"]["run_id"] = run_id
    return ErrorReply(spec.status, body, headers)


def _spec(error: BaseException) -> ErrorSpec:
    if isinstance(error, ScriptError) and error.cause is not None:
        cause = _listed(error.cause)
        if cause is not None and cause.status >= 500:
            return cause  # not the script's fault, though it might have caught it
    return _listed(error) or INTERNAL


def _listed(error: BaseException) -> ErrorSpec | None:
    return next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), None)


def _details(error: Exception, max_chars: int) -> dict[str, Any]:
    """What an error of a program says besides: where in the script, and what for."""
    match error:
        case LimitReached():
            return error.details
        case ProgramInvalid():
            return {"diagnostics": diagnostics_body(error.diagnostics)}
        case ScriptError():
            return {
                "traceback": _cut(error.traceback, 16 * max_chars),
                "line": error.frames[-1].line if error.frames else None,
            }
        case ScriptLimitExceeded():
            return {"limit": error.limit, "used": error.used, "allowed": error.allowed}
    return {}


def diagnostics_body(diagnostics: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """What is wrong with a script: lines and columns count from 1, columns in characters; ends are behind the last."""
    return [
        {
            "line": one.line,
            "column": one.column,
            "end_line": one.end_line or one.line,
            "end_column": one.end_column or one.column,
            "severity": one.severity,
            "rule": one.rule or None,
            "message": _cut(one.message, MAX_MESSAGE_CHARS),
        }
        for one in diagnostics
    ]


def _http_reply(error: HTTPException) -> ErrorReply:
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    body = _body(_cut(str(error.detail), MAX_MESSAGE_CHARS), kind, None, _HTTP_CODES.get(error.status_code))
    return ErrorReply(error.status_code, body, dict(error.headers or {}))


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    param = None if param is None else _cut(param, MAX_PARAM_CHARS)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
