"""The load test as a command, against a small server that answers at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests import run


class TokenServer:
    """Answers every request with as many tokens as it asks for; refuses prompts of one certain length.

    Attributes:
        refused_length: Prompts of so many tokens get a 503.
        bodies: What was asked.
        most_open: Most requests in flight at once.
    """

    def __init__(self) -> None:
        self.refused_length = -1
        self.bodies: list[dict[str, object]] = []
        self.most_open = 0
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        await asyncio.sleep(0.01)
        if len(body["prompt"]) == self.refused_length:
            writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            for event in stream_of(body["max_tokens"]):
                writer.write(b"data: " + event + b"\n\n")
        self._open -= 1
        writer.close()


def stream_of(num_tokens: int) -> Iterator[bytes]:
    for _ in range(num_tokens):
        yield json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}).encode()
    yield json.dumps({"choices": [], "usage": {"completion_tokens": num_tokens}}).encode()
    yield b"[DONE]"


@pytest.fixture
def token_server() -> Iterator[tuple[TokenServer, str]]:
    scripted = TokenServer()
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(scripted.answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield scripted, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_closed_loop_keeps_its_number_of_clients(token_server: tuple[TokenServer, str], tmp_path: Path) -> None:
    server, url = token_server
    path = tmp_path / "run.json"
    sizes = ["--concurrency", "3", "--requests", "12", "--prompt", "4:9", "--output", "3"]
    assert run.main(["--url", url, "--model", "m", *sizes, "--json", str(path)]) == 0
    (result,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert (result["concurrency"], result["num_requests"], result["num_failed"]) == (3, 12, 0)
    assert result["ttft_ms"]["p50"] > 0
    assert server.most_open == 3


def test_an_open_loop_sends_every_request(token_server: tuple[TokenServer, str], tmp_path: Path) -> None:
    server, url = token_server
    path = tmp_path / "run.json"
    sizes = ["--rate", "500", "--requests", "20", "--prompt", "4", "--output", "2:3"]
    assert run.main(["--url", url, "--model", "m", *sizes, "--json", str(path)]) == 0
    (result,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert (result["rate"], result["num_requests"]) == (500, 20)
    assert {body["model"] for body in server.bodies} == {"m"}


def test_failures_are_counted_and_fail_the_command(
    token_server: tuple[TokenServer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = token_server
    server.refused_length = 5
    sizes = ["--concurrency", "2", "--requests", "16", "--prompt", "4:5", "--output", "2"]
    assert run.main(["--url", url, "--model", "m", *sizes]) == 1
    assert "failure: HTTP 503: busy" in capsys.readouterr().out
