"""What comes over a socket and is no request, or an old one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from engine.text.model import TextModel
from gateway.protocol import MAX_HEAD_BYTES
from tests.fakes import RunningServer, ScriptedEngine, running_server
from tests.gateway.wire import CHAT, Body, chat, chunks, joined

BODY = json.dumps(chat(stream=True)).encode()


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel) -> Iterator[RunningServer]:
    """A real server over `engine`."""
    with running_server(engine, model) as server:
        yield server


def exchange(server: RunningServer, *parts: bytes) -> bytes:
    """Sends bytes; returns all that comes until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
        while data := connection.recv(65536):
            received += data
    return received


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines)
    return int(status.split()[1]), headers, body


def error_in(answer: bytes, status: int) -> Body:
    """The error of an answer that closes the connection, after checking its shape."""
    got, headers, body = split(answer)
    assert got == status, answer
    assert headers["content-type"] == "application/json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    assert int(headers["content-length"]) == len(body)
    error: Body = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xc3\xa9 HTTP/1.1\r\n\r\n",
        b"GET http://only-a-host HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_the_error_shape(server: RunningServer, raw: bytes) -> None:
    assert error_in(exchange(server, raw), 400)["message"]
    assert httpx.get(server.url + "/health", timeout=60).status_code == 200


def test_an_unknown_verb_is_not_allowed_in_the_error_shape(server: RunningServer) -> None:
    answer = exchange(server, b"FOO /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    assert error_in(answer, 405)["code"] == "method_not_allowed"
    assert "POST" in split(answer)[1]["allow"]


def test_a_refused_body_names_the_clients_own_request_id(server: RunningServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-request-id: mine\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = exchange(server, head, b"zz\r\n")
    error_in(answer, 400)
    assert split(answer)[1]["x-request-id"] == "mine"


def test_headers_without_end_are_refused(server: RunningServer) -> None:
    lines = [b"x-filler-%d: %s\r\n" % (number, b"a" * 1000) for number in range(MAX_HEAD_BYTES // 1000 + 2)]
    answer = exchange(server, b"GET /health HTTP/1.1\r\nhost: x\r\n", *lines)
    assert error_in(answer, 431)["code"] == "request_head_too_large"


def test_a_long_body_is_no_long_head(server: RunningServer) -> None:
    body = json.dumps(chat(user="x" * 4 * MAX_HEAD_BYTES)).encode()
    assert httpx.post(server.url + CHAT, content=body, timeout=60).status_code == 200


def test_an_answer_on_its_way_is_not_followed_by_a_refusal(server: RunningServer, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], 0.5, [41]]
    host, port = server.url.removeprefix("http://").split(":")
    request = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(BODY))
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request + BODY)
        received = connection.recv(65536)
        connection.sendall(b"garbage\r\n\r\n")
        while data := connection.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 4" not in received


@pytest.mark.parametrize("keep_alive", [b"", b"connection: keep-alive\r\n"])
def test_a_stream_for_http_1_0_comes_without_chunk_sizes(server: RunningServer, keep_alive: bytes) -> None:
    request = b"POST %s HTTP/1.0\r\n%scontent-length: %d\r\n\r\n" % (CHAT.encode(), keep_alive, len(BODY))
    status, headers, body = split(exchange(server, request + BODY))
    assert status == 200
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    assert joined(chunks(body.decode())) == "Hello there."


def test_a_whole_answer_for_http_1_0_has_its_length(server: RunningServer) -> None:
    body = json.dumps(chat()).encode()
    request = b"POST %s HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    _, headers, answer = split(exchange(server, request + body))
    assert int(headers["content-length"]) == len(answer)
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello there."
