"""One gateway process: connects to the engine, serves HTTP, and drains before it ends.

python -m gateway.worker        # reads `WorkerSettings` from its environment, see `gateway.settings`
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from types import FrameType

import uvicorn
import uvloop
from fastapi import FastAPI

from engine.client import EngineClient
from engine.connection import EngineConnection
from engine.text.model import TextModel
from gateway.app import create_app
from gateway.logs import configure_logging
from gateway.protocol import GatewayProtocol
from gateway.services import Services
from gateway.settings import Settings, WorkerSettings
from gateway.stopping import DROP_S, FLUSH_S
from gateway.tracing import start_tracing

log = logging.getLogger(__name__)


class DrainingServer(uvicorn.Server):
    """A uvicorn server that finishes what it has begun before it stops listening.

    The first SIGTERM or SIGINT begins the drain: new work is refused with 503, `/ready` says so, running requests get
    `drain_s` seconds. What still runs then ends with an error event. A second SIGINT stops at once. The process exits
    with 0 after a drain.

    Args:
        config: Of uvicorn; its `app` must be the one that `services` belong to.
        services: Of the app.
        engine: Closed when the drain takes too long.
    """

    def __init__(self, config: uvicorn.Config, services: Services, engine: EngineClient) -> None:
        super().__init__(config)
        self._services = services
        self._engine = engine
        self._is_asked = False
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes a signal; the server's own loop acts on it. Unlike uvicorn's, does not raise it again at the end."""
        if self._is_asked and sig == signal.SIGINT:
            self.force_exit = True
            self.should_exit = True
        self.begin_drain()

    def begin_drain(self) -> None:
        """Asks for a drain and the end. Idempotent."""
        self._is_asked = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and begins to look for batches."""
        await super().startup(sockets)
        if self._services.batches is not None:
            self._services.batches.start()
        if self._services.tenants is not None:
            self._services.tenants.settler.start()
        if self._services.detached is not None:
            self._services.detached.watch()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening and waits for the connections; those of clients that do not read to the end are closed."""
        # Its work then ends as for any client that leaves; uvicorn would cancel it, which is logged as a failure.
        dropping = asyncio.get_running_loop().call_later(DROP_S, self._drop)
        try:
            await super().shutdown(sockets)
        finally:
            dropping.cancel()

    def _drop(self) -> None:
        left = [one for one in self.server_state.connections if isinstance(one, GatewayProtocol)]
        if left:
            log.warning("closing %d connections whose clients have not read to the end", len(left))
        for connection in left:
            connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        """Runs ten times a second; true ends the server."""
        if self._is_asked and self._drain is None:
            self._services.lifecycle.begin_drain()
            if self._services.batches is not None:
                self._services.batches.begin_drain()
            if self._services.detached is not None:
                self._services.detached.begin_drain()
            self._drain = asyncio.create_task(self._finish())
        return await super().on_tick(counter)

    async def _finish(self) -> None:
        lifecycle, drain_s = self._services.lifecycle, self._services.settings.drain_s
        if lifecycle.num_active:
            log.info("draining: %d requests get up to %g s", lifecycle.num_active, drain_s)
        if not await lifecycle.wait_idle(drain_s):
            log.warning("ending %d requests that did not finish in time", lifecycle.num_active)
            if self._services.detached is not None:
                await self._services.detached.hand_over()
            await self._engine.close()
            await lifecycle.wait_idle(FLUSH_S)
        self.should_exit = True


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn is run."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=GatewayProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=int(FLUSH_S),
    )


def run_worker(worker: WorkerSettings) -> None:
    """Serves until told to stop; returns after the drain.

    Raises:
        ModelLoadError: The model's tokenizer or template cannot be read.
        SystemExit: The address cannot be bound.
    """
    configure_logging(worker.settings)
    text = TextModel.load(worker.model_path)
    stop_tracing = start_tracing(worker.settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(worker, text))
    finally:
        stop_tracing()


async def _serve(worker: WorkerSettings, text: TextModel) -> None:
    engine = EngineConnection(worker.engine_endpoint)
    try:
        # Not waited for: /ready tells when the engine is there, and clients get a clean 503 until then.
        await engine.connect(timeout_s=0)
        app = create_app(
            worker.settings,
            engine=engine,
            text=text,
            worker=worker.index,
            metrics_dir=worker.metrics_dir,
            store_url=worker.store_url,
            files_dir=worker.files_dir,
        )
        server = DrainingServer(server_config(app, worker.settings), app.state.services, engine)
        # What was loaded stays: collections need not look at it again and again.
        gc.collect()
        gc.freeze()
        await server.serve(_inherited(worker.socket_fd))
        await app.state.services.aclose()
    finally:
        await engine.close()


def _inherited(fd: int | None) -> list[socket.socket] | None:
    return None if fd is None else [socket.socket(fileno=fd)]


if __name__ == "__main__":
    run_worker(WorkerSettings.from_environment())
