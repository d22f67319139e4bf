"""The engine's door to a loop in this very process: for embedding it, and for tests."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator

from engine.connection import EngineConnection
from engine.loop import EngineLoop
from engine.server import EngineServer, bound_socket


@contextlib.asynccontextmanager
async def open_engine(loop: EngineLoop) -> AsyncIterator[EngineConnection]:
    """Runs a loop in a thread and connects to it, over the same socket and messages as a separate process.

    Example:
        async with open_engine(build_loop(config)) as engine:
            async for event in await engine.submit(request): ...
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="wye-") as directory:
        endpoint = f"ipc://{directory}/engine.sock"
        bound = threading.Event()

        def serve() -> None:
            with bound_socket(endpoint) as socket:
                bound.set()
                EngineServer(loop, socket, parent=reader).run()

        thread = threading.Thread(target=serve, name="engine", daemon=True)
        thread.start()
        bound.wait()
        connection = EngineConnection(endpoint)
        try:
            await connection.connect()
            yield connection
        finally:
            await connection.close()
            os.close(writer)
            thread.join()
            os.close(reader)
            loop.close()
