"""Bytes on the wire that well-behaved clients do not send."""

from __future__ import annotations

import asyncio
import gzip
import json

import httpx
import pytest

from loadtests.server import RunningServer
from tests.e2e.sockets import exchange, request
from tests.gateway.wire import CHAT, TEXT, chat, error_of, text

CLOSE = "Connection: close"


async def test_a_body_may_come_in_chunks_of_one_byte(server: RunningServer) -> None:
    body = json.dumps(chat(max_tokens=2)).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    answer = await exchange(server.port, [request(CHAT, chunks, "Transfer-Encoding: chunked", CLOSE)])
    assert answer.startswith(b"HTTP/1.1 200")


async def test_who_expects_to_be_told_to_continue_is_told(server: RunningServer) -> None:
    answer = await exchange(server.port, [request(CHAT, chat(max_tokens=2), "Expect: 100-continue", CLOSE)])
    assert answer.startswith(b"HTTP/1.1 100")
    assert b"HTTP/1.1 200" in answer


async def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    first = request(TEXT, text(max_tokens=3, stream=True))
    second = request(CHAT, chat(max_tokens=2))
    last = request("/nope", b"", CLOSE, method="GET")
    answer = await exchange(server.port, [first + second + last])
    positions = [answer.find(mark) for mark in (b"[DONE]", b'"chat.completion"', b"HTTP/1.1 404")]
    assert -1 not in positions
    assert positions == sorted(positions)


@pytest.mark.parametrize("length", ["abc", "-5", "+5", "1" * 40])
async def test_a_length_that_is_none_is_refused(server: RunningServer, length: str) -> None:
    answer = await exchange(server.port, [request(CHAT, chat(), f"Content-Length: {length}")])
    assert answer.startswith(b"HTTP/1.1 400")


async def test_a_length_beyond_the_limit_is_refused_before_the_body(server: RunningServer) -> None:
    answer = await exchange(server.port, [request(CHAT, b"", "Content-Length: 52428800", CLOSE)])
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in answer


async def test_a_gzip_bomb_is_refused(client: httpx.AsyncClient) -> None:
    bomb = gzip.compress(b" " * (64 << 20), 9)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = await client.post(CHAT, content=bomb, headers=headers)
    assert error_of(answer, 413)["code"] == "request_too_large"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_g_49_a_body_of_nothing_but_openings_is_refused(client: httpx.AsyncClient, opening: bytes) -> None:
    answer = await client.post(CHAT, content=opening * 100_000, headers={"content-type": "application/json"})
    error = error_of(answer, 400)
    if b"a" in opening:
        assert error["param"] == "a"
        assert "nested deeper" in error["message"]
    else:
        assert error["code"] == "invalid_json"


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/v1",
        "//v1/models",
        "/v1/../health",
        "/v1/moderations",
        "/v1/audio/speech",
        "/v1/images",
        "/chat/completions",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_g_83_paths_that_are_not_served_are_404_in_the_error_shape(
    server: RunningServer, path: str, method: str
) -> None:
    answer = await exchange(server.port, [request(path, b"{}", CLOSE, method=method)])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    assert b"x-request-id" in head
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


async def test_g_10_a_stream_that_waits_for_pages_is_kept_open_by_comments_alone(server: RunningServer) -> None:
    # Each needs more than half of the pool, so the second waits without a token while the first runs.
    body = text(prompt=[5] * 400, max_tokens=200, ignore_eos=True, stream=True)
    requests = [request(TEXT, {**body, "cache_salt": salt}, CLOSE) for salt in "ab"]
    answers = await asyncio.gather(*(exchange(server.port, [data]) for data in requests))
    for answer in answers:
        lines = answer.replace(b"\r\n", b"\n").split(b"\n")
        assert lines.count(b"data: [DONE]") == 1
        assert not any(line.startswith((b"id:", b"event:")) for line in lines)
    assert any(b"\n: " in answer for answer in answers)
