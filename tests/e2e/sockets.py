"""HTTP by hand: for requests that no well-behaved client sends."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable
from typing import Any

PATIENCE_S = 60.0


def request(path: str, body: bytes | dict[str, Any], *headers: str, method: str = "POST") -> bytes:
    """The bytes of a request with a JSON body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: test", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


async def exchange(port: int, pieces: Iterable[bytes]) -> bytes:
    """Sends pieces one by one; returns all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    finally:
        writer.close()


async def give_up(port: int, data: bytes, *, after_s: float, resets: bool) -> None:
    """Sends a request and leaves after a while, politely or with a reset."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await asyncio.sleep(after_s)
    if resets:
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    writer.close()
