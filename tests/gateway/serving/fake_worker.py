"""A gateway worker without engine or web framework: `/ready`, `/slow`, and a drain at SIGTERM.

Run as a program on an inherited socket, as the supervisor runs `gateway.worker`. `FAKE_WORKER` says how it misbehaves:
`crash` and `bad-model` end at once, `stubborn` never. `/slow` makes the file `FAKE_WORKER_MARK` when it has begun.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from engine.errors import ModelLoadError
from gateway.settings import WorkerSettings

SLOW_S = 1.0


class Handler(BaseHTTPRequestHandler):
    """Answers with its own process id."""

    def do_GET(self) -> None:
        """200, for `/slow` after a while."""
        if self.path == "/slow":
            if mark := os.environ.get("FAKE_WORKER_MARK"):
                Path(mark).touch()
            time.sleep(SLOW_S)
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class Server(ThreadingHTTPServer):
    """Waits for requests in flight when closed."""

    daemon_threads = False


def main() -> None:
    """Serves until SIGTERM."""
    if os.environ.get("FAKE_WORKER") == "crash":
        sys.exit(3)
    if os.environ.get("FAKE_WORKER") == "bad-model":
        raise ModelLoadError("tokenizer.json: damaged")
    settings = WorkerSettings.from_environment()
    assert settings.socket_fd is not None
    server = Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=settings.socket_fd)

    def stop(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("FAKE_WORKER") == "stubborn" else stop)
    server.serve_forever(0.05)
    server.server_close()


if __name__ == "__main__":
    main()
