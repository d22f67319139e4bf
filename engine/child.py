"""Entry of an engine process: reads its order, loads, reports, serves.

standard input   one JSON line, an `Order`; its end means stop
status pipe      JSON lines, each a `Status`: loading, then ready or failed
standard error   logs, as text or as JSON lines
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys

import msgspec

from engine.config import EngineConfig
from engine.errors import EngineError, ModelLoadError
from engine.logs import set_up_logging
from engine.reports import report
from engine.request import EngineInfo, ErrorReport
from engine.settling import settle


class Order(msgspec.Struct, frozen=True):
    """What a child is to do.

    Attributes:
        config: The engine it becomes.
        endpoint: ZeroMQ address it serves.
        status: File descriptor it reports to.
        log_level: Name of a logging level.
        logs_json: Write log lines as JSON objects.
    """

    config: EngineConfig
    endpoint: str
    status: int
    log_level: str = "INFO"
    logs_json: bool = False


class Status(msgspec.Struct, frozen=True):
    """How far a child has come.

    Attributes:
        stage: `loading`, `ready` or `failed`.
        info: When ready.
        error: When failed.
    """

    stage: str
    info: EngineInfo | None = None
    error: ErrorReport | None = None


def main() -> int:
    """Runs one engine until standard input ends. Returns the exit code: 0, or 1 if it could not start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the whole group; the parent decides
    order = msgspec.json.decode(_read_line(0), type=Order)
    set_up_logging(order.log_level, as_json=order.logs_json)
    with os.fdopen(order.status, "wb", buffering=0) as status:

        def tell(news: Status) -> None:
            with contextlib.suppress(BrokenPipeError):  # the parent is gone; the end of standard input says so too
                status.write(msgspec.json.encode(news) + b"\n")

        tell(Status("loading"))
        try:
            from engine.build import build_loop  # torch takes seconds to import: report first
            from engine.server import EngineServer, bound_socket

            loop = build_loop(order.config)
        except EngineError as error:
            tell(Status("failed", error=report(error)))
            return 1
        except Exception as error:
            logging.getLogger(__name__).exception("the engine could not be built")
            tell(Status("failed", error=report(ModelLoadError(f"{type(error).__name__}: {error}"))))
            return 1
        settle()
        loop.warm_up()
        with bound_socket(order.endpoint) as socket:
            tell(Status("ready", info=loop.info))
            EngineServer(loop, socket, parent=0).run()
        loop.close()
    return 0


def _read_line(descriptor: int) -> bytes:
    """One line, read without taking anything that follows it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            raise EOFError("standard input ended before an order came")
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
