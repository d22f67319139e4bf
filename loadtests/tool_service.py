"""A tool that takes its time: a tiny HTTP service in a process of its own, for `loadtests.agents`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import signal
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection

ANSWER = json.dumps({"found": "twelve degrees and light rain"}).encode()


@contextlib.contextmanager
def running_tool(delay_s: float) -> Iterator[str]:
    """The service's URL inside the `with`.

    Args:
        delay_s: What it waits before each answer.
    """
    context = multiprocessing.get_context("spawn")
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(listener, theirs, delay_s), daemon=True)
    process.start()
    listener.close()
    theirs.close()
    try:
        ours.recv()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()
        ours.close()


def _serve(listener: socket.socket, parent: Connection, delay_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(_content_length(head))
                await asyncio.sleep(delay_s)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                    % (len(ANSWER), ANSWER)
                )
                await writer.drain()

    async def serve() -> None:
        server = await asyncio.start_server(answer, sock=listener)
        parent.send("ready")
        async with server:
            await server.serve_forever()

    asyncio.run(serve())


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0
