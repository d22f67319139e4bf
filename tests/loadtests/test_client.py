"""The client reads streams as servers send them, and calls a broken answer a failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadtests.client import Target, complete
from loadtests.measure import Outcome
from loadtests.workload import Request

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def token(text: str = "a", finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def usage(num_tokens: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": num_tokens}})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


class Script:
    """A server that answers every request with the same pieces, and keeps what it was sent."""

    def __init__(self, *pieces: bytes, delay_s: float = 0.0) -> None:
        self.pieces = pieces
        self.delay_s = delay_s
        self.request = b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        self.request = head + await reader.readexactly(length)
        for piece in self.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self.delay_s)
        writer.close()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Target]:
    server = await asyncio.start_server(script.answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Target(host="127.0.0.1", port=port, model="m", api_key="key", timeout_s=60.0)


async def ask(script: Script, max_tokens: int = 3) -> Outcome:
    async with serving(script) as target:
        return await complete(target, Request(arrival_s=0.0, prompt_ids=(5, 6, 7), max_tokens=max_tokens, seed=1))


async def test_every_token_is_stamped_when_it_came() -> None:
    script = Script(HEAD, chunk(token()), chunk(token()), chunk(token("", "length")), chunk(usage(3) + DONE) + END,
                    delay_s=0.02)  # fmt: skip
    outcome = await ask(script)
    assert outcome.error is None
    assert outcome.num_output_tokens == 3
    assert outcome.num_prompt_tokens == 3
    assert len(outcome.token_times) == 3
    assert outcome.token_times == sorted(outcome.token_times)
    assert outcome.started_at < outcome.token_times[0]


async def test_the_request_asks_for_exactly_what_the_workload_says() -> None:
    script = Script(HEAD, chunk(token() + token() + token("", "length") + usage(3) + DONE) + END)
    await ask(script)
    head, _, body = script.request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer key" in head
    sent = json.loads(body)
    assert sent["prompt"] == [5, 6, 7]
    assert sent["max_tokens"] == 3
    assert sent["stream"] is True
    assert sent["ignore_eos"] is True


async def test_events_cut_anywhere_are_put_together() -> None:
    body = chunk(token("ab")) + chunk(b": comment\n" + token("c")) + chunk(token("", "length") + usage(3) + DONE) + END
    pieces = [body[i : i + 7] for i in range(0, len(body), 7)]
    outcome = await ask(Script(HEAD, *pieces))
    assert outcome.error is None
    assert len(outcome.token_times) == 3


async def test_a_body_without_chunks_is_read_to_the_end_of_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    outcome = await ask(Script(head, token(), token(), token("", "stop") + usage(3) + DONE))
    assert outcome.error is None
    assert outcome.num_output_tokens == 3


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy"], "HTTP 429: busy"),
        ([HEAD, chunk(token()), chunk(event({"error": {"message": "engine gone"}}))], "engine gone"),
        ([HEAD, chunk(token())], "without [DONE]"),
        ([HEAD, chunk(DONE) + END], "no token"),
        ([HEAD, chunk(token("", "stop") + usage(1) + DONE) + END], "fewer tokens"),
        ([b""], "without an answer"),
    ],
)
async def test_a_broken_answer_is_a_failure(pieces: list[bytes], error: str) -> None:
    outcome = await ask(Script(*pieces))
    assert outcome.error is not None
    assert error in outcome.error


async def test_a_server_that_never_ends_is_a_failure() -> None:
    async with serving(Script(HEAD, chunk(token()), delay_s=1.0)) as target:
        hasty = Target(host=target.host, port=target.port, model="m", timeout_s=0.05)
        outcome = await complete(hasty, Request(arrival_s=0.0, prompt_ids=(1,), max_tokens=1, seed=0))
    assert outcome.error == "no end within 0.05 s"


async def test_no_server_is_a_failure() -> None:
    async with serving(Script()) as target:
        pass
    outcome = await complete(target, Request(arrival_s=0.0, prompt_ids=(1,), max_tokens=1, seed=0))
    assert outcome.error


def test_targets_are_read_from_urls() -> None:
    target = Target.parse("http://localhost:9000/v1/", "m")
    assert (target.host, target.port, target.prefix) == ("localhost", 9000, "/v1")
    assert Target.parse("http://localhost:9000", "m").prefix == "/v1"
    with pytest.raises(ValueError, match="expected a URL"):
        Target.parse("localhost:9000", "m")
