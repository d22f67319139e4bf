"""Errors of all packages on the wire."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from engine import errors as engine_errors
from engine.errors import (
    ContextTooLong,
    EngineError,
    EngineStopped,
    InvalidRequest,
    ModelLoadError,
    OutOfPages,
    QueueFull,
    ResourceExhausted,
    SequenceNotFound,
)
from engine.text.errors import TemplateError, TextTooLong
from gateway import errors
from gateway.errors import INTERNAL, TABLE, BadRequest, ClientGone, GatewayError, ModelNotFound, NotReady, to_reply


def all_classes(root: type[Exception]) -> list[type[Exception]]:
    """A class and everything below it."""
    return [root, *(found for child in root.__subclasses__() for found in all_classes(child))]


@pytest.mark.parametrize("kind", all_classes(GatewayError)[1:])
def test_every_gateway_error_has_its_row(kind: type[Exception]) -> None:
    assert kind in TABLE
    assert kind.__name__ in (errors.__doc__ or "")


# A bug of ours, or a start that failed: neither is for a client to read.
INTERNAL_KINDS = {EngineError, SequenceNotFound, ModelLoadError}


@pytest.mark.parametrize("kind", all_classes(EngineError))
def test_every_engine_error_is_told_or_internal(kind: type[Exception]) -> None:
    if kind.__module__ != engine_errors.__name__:
        pytest.skip("not the engine's own")
    rows = [TABLE[parent] for parent in kind.__mro__ if parent in TABLE]
    assert bool(rows) != (kind in INTERNAL_KINDS)


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (InvalidRequest("no", "n"), 400, None, "n"),
        (ContextTooLong(10, 20, None), 400, "context_length_exceeded", "prompt_ids"),
        (QueueFull(3), 503, "server_is_overloaded", None),
        (OutOfPages(3, 1), 503, "server_is_overloaded", None),
        (ResourceExhausted("full"), 503, "server_is_overloaded", None),
        (EngineStopped("gone"), 503, "engine_stopped", None),
        (TextTooLong(5, 3), 400, "context_length_exceeded", None),
        (TemplateError("no"), 400, "invalid_messages", None),
        (ModelNotFound("m"), 404, "model_not_found", "model"),
        (NotReady("later"), 503, "server_is_overloaded", None),
        (ClientGone(), 499, "client_closed_request", None),
        (BadRequest("bad", "x", code="invalid_type"), 400, "invalid_type", "x"),
        (HTTPException(404), 404, "not_found", None),
        (HTTPException(405, headers={"Allow": "GET"}), 405, "method_not_allowed", None),
        (RuntimeError("secret"), 500, "internal_error", None),
        (ZeroDivisionError(), 500, "internal_error", None),
    ],
)
def test_each_error_has_its_status_code_and_param(
    error: Exception, status: int, code: str | None, param: str | None
) -> None:
    reply = to_reply(error, retry_after_s=4)
    body = reply.body["error"]
    assert (reply.status, body["code"], body["param"]) == (status, code, param)
    assert reply.headers.get("Retry-After") == ("4" if status == 503 else None)
    assert body["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert "secret" not in body["message"]


def test_an_internal_error_is_not_to_be_retried() -> None:
    assert to_reply(ValueError("x")).headers == {"x-should-retry": "false"}
    assert INTERNAL.status == 500


def test_a_prompt_that_does_not_fit_has_its_code_in_the_message_too() -> None:
    assert to_reply(ContextTooLong(128, 100, 29)).body["error"]["message"].endswith(" (context_length_exceeded)")


def test_long_messages_are_cut() -> None:
    body = to_reply(BadRequest("m" * 5000, "p" * 5000), max_message_chars=100).body["error"]
    assert len(body["message"]) == 100
    assert body["message"].endswith("…")
    assert len(body["param"]) == errors.MAX_PARAM_CHARS
