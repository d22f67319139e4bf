"""The parent of an engine process: starts it, waits until it serves, ends it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from types import TracebackType

import msgspec

from engine.child import Order, Status
from engine.config import EngineConfig
from engine.errors import EngineStopped
from engine.reports import rebuild
from engine.request import EngineInfo

THREAD_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Set for an engine unless its parent's environment says otherwise; OpenMP reads it while torch is loaded.

Threads that wait for each other sleep instead of spinning. A step has hundreds of parallel regions, and where gateway
and engine share the cores a spinning thread is taken for a busy one and loses its turn: with two busy processes beside
it a step on two cores took 640 ms spinning and 42 ms sleeping.
"""


class EngineProcess:
    """A child process that runs one engine; it ends when this object closes its end of a pipe, or its process ends.

    Args:
        config: The engine.
        endpoint: ZeroMQ address, e.g. `ipc:///path/engine.sock`.
        log_level: Of the child's logging.
        logs_json: Have the child write log lines as JSON objects.
    """

    def __init__(
        self, config: EngineConfig, endpoint: str, *, log_level: str = "INFO", logs_json: bool = False
    ) -> None:
        self.config = config
        self.endpoint = endpoint
        self._log_level = log_level
        self._logs_json = logs_json
        self._child: subprocess.Popen[bytes] | None = None
        self._status: int | None = None
        self._unread = b""
        self._info: EngineInfo | None = None

    def start(self) -> None:
        """Starts the child; `wait_ready` tells when it serves."""
        assert self._child is None, "already started"
        reader, writer = os.pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "engine.child"],
                stdin=subprocess.PIPE,
                pass_fds=(writer,),
                env=THREAD_ENVIRONMENT | os.environ,
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._status = reader
        order = Order(self.config, self.endpoint, writer, self._log_level, self._logs_json)
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: wait_ready says so
            self._child.stdin.write(msgspec.json.encode(order) + b"\n")
            self._child.stdin.flush()

    def wait_ready(self, timeout_s: float | None = None) -> EngineInfo:
        """Waits until the child serves.

        Raises:
            ModelLoadError: It could not load.
            EngineStopped: It ended without saying why.
            TimeoutError: It is not ready yet; calling again is fine.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._info is None:
            status = self._read_status(deadline_s)
            if status.error is not None:
                raise rebuild(status.error)
            self._info = status.info
        return self._info

    @property
    def pid(self) -> int:
        """Process id of the child."""
        assert self._child is not None, "not started"
        return self._child.pid

    @property
    def alive(self) -> bool:
        """True while the child runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The child's exit code, negative for a signal; None while it runs."""
        return None if self._child is None else self._child.poll()

    def stop(self, timeout_s: float = 5.0) -> int | None:
        """Asks the child to end, kills it if it has not after `timeout_s`, and returns its exit code. Idempotent."""
        if self._status is not None:
            os.close(self._status)
            self._status = None
        if self._child is None:
            return None
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _read_status(self, deadline_s: float | None) -> Status:
        assert self._status is not None, "not started, or stopped"
        while b"\n" not in self._unread:
            patience_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not select.select([self._status], [], [], patience_s)[0]:
                raise TimeoutError("the engine is still loading")
            data = os.read(self._status, 65536)
            if not data:
                raise EngineStopped(f"the engine process ended while loading (exit code {self._await_exit()})")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return msgspec.json.decode(line, type=Status)

    def _await_exit(self) -> int | None:
        assert self._child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(5.0)
        return None
