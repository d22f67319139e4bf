"""A streaming client that costs little: bytes are stamped as they arrive and read only after the stream has ended."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from loadtests.measure import Outcome
from loadtests.workload import Request

END_OF_CHUNKS = b"0\r\n\r\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The server under test.

    Attributes:
        host, port: Where it listens (plain HTTP).
        prefix: Path before `/completions`, e.g. `/v1`.
        model: Model name to send.
        api_key: Bearer token, or None.
        timeout_s: A request that takes longer has failed.
    """

    host: str
    port: int
    model: str
    prefix: str = "/v1"
    api_key: str | None = None
    timeout_s: float = 600.0

    @classmethod
    def parse(cls, url: str, model: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> Target:
        """Reads a base URL such as `http://127.0.0.1:8000/v1`.

        Raises:
            ValueError: It is not an http URL with a host.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"expected a URL like http://127.0.0.1:8000/v1, got {url!r}")
        prefix = parts.path.rstrip("/") or "/v1"
        return cls(
            host=parts.hostname,
            port=parts.port or 80,
            model=model,
            prefix=prefix,
            api_key=api_key,
            timeout_s=timeout_s,
        )


class StreamFailed(Exception):
    """The stream did not bring a whole answer; the text says how."""


async def complete(target: Target, request: Request, *, due_at: float | None = None) -> Outcome:
    """Sends one streaming completion and waits for its end.

    Args:
        target: The server.
        request: Prompt ids and lengths.
        due_at: `time.perf_counter` value at which the request should have started; latencies count from there, so that
            a client that falls behind does not flatter the server. None counts from the call.

    Returns:
        What happened; a failure is part of the outcome, never raised.
    """
    started_at = due_at if due_at is not None else time.perf_counter()
    outcome = Outcome(num_prompt_tokens=len(request.prompt_ids), started_at=started_at, asked_tokens=request.max_tokens)
    try:
        async with asyncio.timeout(target.timeout_s):
            raw = await _exchange(target, _body(target, request))
        _read_stream(raw, outcome)
    except TimeoutError:
        outcome.error = f"no end within {target.timeout_s:g} s"
    except (OSError, StreamFailed) as error:
        outcome.error = str(error) or type(error).__name__
    outcome.ended_at = time.perf_counter() if outcome.error else outcome.token_times[-1]
    return outcome


def _body(target: Target, request: Request) -> bytes:
    payload = {
        "model": target.model,
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    return json.dumps(payload, separators=(",", ":")).encode()


@dataclass(slots=True)
class _Received:
    """Bytes of a response with the time each piece came."""

    data: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class _Collector(asyncio.Protocol):
    """Sends a request and keeps what comes back, until the last chunk or the end of the connection."""

    def __init__(self, head_and_body: bytes) -> None:
        self._outgoing = head_and_body
        self._transport: asyncio.BaseTransport | None = None
        self.received = _Received()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._outgoing)

    def data_received(self, data: bytes) -> None:
        received = self.received
        received.data += data
        received.ends.append(len(received.data))
        received.times.append(time.perf_counter())
        if received.data.endswith(END_OF_CHUNKS) and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            if exc is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(exc)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def _exchange(target: Target, body: bytes) -> _Received:
    head = [
        f"POST {target.prefix}/completions HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if target.api_key is not None:
        head.append(f"Authorization: Bearer {target.api_key}")
    message = "\r\n".join(head).encode() + b"\r\n\r\n" + body
    loop = asyncio.get_running_loop()
    _, collector = await loop.create_connection(lambda: _Collector(message), target.host, target.port)
    try:
        await collector.done
    finally:
        collector.close()
    return collector.received


def _read_stream(received: _Received, outcome: Outcome) -> None:
    """Fills `outcome` from a whole response.

    Raises:
        StreamFailed: Not a 200, an error event, no `[DONE]`, no token at all, or too few.
    """
    head, _, _ = bytes(received.data).partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status) < 2:
        raise StreamFailed("the connection closed without an answer")
    if status[1] != b"200":
        text = received.data[len(head) + 4 :].decode(errors="replace")
        raise StreamFailed(f"HTTP {status[1].decode()}: {text[:300]}")
    chunked = b"transfer-encoding: chunked" in head.lower()
    saw_done = False
    usage: int | None = None
    for at, event in _events(received, len(head) + 4, chunked=chunked):
        if event == b"[DONE]":
            saw_done = True
            continue
        usage = _apply_event(json.loads(event), at, outcome) or usage
    if not saw_done:
        raise StreamFailed("the stream ended without [DONE]")
    if not outcome.token_times:
        raise StreamFailed("the stream brought no token")
    outcome.num_output_tokens = usage if usage is not None else len(outcome.token_times)
    if usage is not None and usage < outcome.asked_tokens:
        raise StreamFailed("fewer tokens than asked for")


def _apply_event(event: dict[str, Any], at: float, outcome: Outcome) -> int | None:
    """Notes one event; returns the count of output tokens if it brings one."""
    if event.get("error"):
        raise StreamFailed(f"error event: {json.dumps(event['error'])[:300]}")
    for choice in event.get("choices") or []:
        text = choice.get("text") or (choice.get("delta") or {}).get("content")
        if text or choice.get("finish_reason"):
            outcome.token_times.append(at)
    usage = event.get("usage")
    return usage.get("completion_tokens") if usage else None


def _events(received: _Received, start: int, *, chunked: bool) -> list[tuple[float, bytes]]:
    """Data of each event with the time its last byte came."""
    body, offsets = (
        _dechunk(received.data, start) if chunked else ([bytes(received.data[start:])], [len(received.data)])
    )
    events: list[tuple[float, bytes]] = []
    pending = b""
    piece = 0
    for part, offset in zip(body, offsets, strict=True):
        while received.ends[piece] < offset:
            piece += 1
        lines = (pending + part).split(b"\n")
        pending = lines.pop()
        events += [(received.times[piece], line[5:].strip()) for line in lines if line.startswith(b"data:")]
    return events


def _dechunk(data: bytearray, start: int) -> tuple[list[bytes], list[int]]:
    """Chunks of a chunked body, each with the offset in `data` where it ends."""
    parts: list[bytes] = []
    ends: list[int] = []
    while (line_end := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:line_end].split(b";")[0], 16)
        start = line_end + 2
        if size == 0 or start + size > len(data):
            break
        parts.append(bytes(data[start : start + size]))
        start += size + 2
        ends.append(start - 2)
    return parts, ends
