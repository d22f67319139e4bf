"""A small OpenAI-compatible server that answers at once, for load tests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
        """Serves one connection, which carries one request."""
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
    """Data of each event of an answer."""
    for _ in range(num_tokens):
        yield json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}).encode()
    yield json.dumps({"choices": [], "usage": {"completion_tokens": num_tokens}}).encode()
    yield b"[DONE]"


@contextmanager
def running_token_server() -> Iterator[tuple[TokenServer, str]]:
    """The server and its base URL, in a thread of its own."""
    scripted = TokenServer()
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(scripted.answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield scripted, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
