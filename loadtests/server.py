"""Starts `wye serve`, or a peer's server, for a measurement (or a test) and ends it in good order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


class ServerFailed(Exception):
    """The server ended, or did not become ready in time; the text holds the end of its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningServer:
    """A ready server.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        pid: Process that was started; others are its children.
        model: Name to send as `model`.
        ready_s: Seconds from start to ready.
    """

    port: int
    pid: int
    model: str
    ready_s: float

    @property
    def url(self) -> str:
        """Base URL for clients, with `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"


@contextlib.contextmanager
def running_server(
    model: str,
    *,
    args: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    timeout_s: float = 300.0,
) -> Iterator[RunningServer]:
    """A server that is ready inside the `with` and gone after it.

    Args:
        model: As `wye serve` takes it.
        args: Further options of `wye serve`.
        environment: Variables set for it, on top of this process's own.
        log_path: Where its output goes; None throws it away.
        timeout_s: Most seconds to wait for it to be ready.

    Raises:
        ServerFailed: It ended early or was not ready in time.
    """
    port = free_port()
    command = [sys.executable, "-m", "gateway.cli", "serve", model, "--host", "127.0.0.1", "--port", str(port), *args]
    variables = {"WYE_HOME": str(CHECKOUT / ".wye"), **os.environ, **(environment or {})}
    with running_command(
        command, name="wye serve", port=port, environment=variables, log_path=log_path, timeout_s=timeout_s
    ) as server:
        yield server


@contextlib.contextmanager
def running_command(
    command: Sequence[str],
    *,
    name: str,
    port: int,
    ready_path: str = "/ready",
    environment: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    timeout_s: float = 300.0,
) -> Iterator[RunningServer]:
    """Any OpenAI-compatible server that is ready inside the `with` and gone after it.

    Args:
        command: Program and arguments; it listens on 127.0.0.1 at `port`.
        name: What messages call it.
        port: Where it will listen.
        ready_path: Answers 200 once it is ready.
        environment: All of its variables; None passes this process's own on.
        log_path: Where its output goes; None throws it away.
        timeout_s: Most seconds to wait for it to be ready.

    Raises:
        ServerFailed: It ended early or was not ready in time.
    """
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(log_path.open("wb")) if log_path is not None else subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        stack.callback(_stop, process)
        try:
            _wait_until_ready(process, name, f"http://127.0.0.1:{port}{ready_path}", started + timeout_s)
        except ServerFailed as error:
            raise ServerFailed(f"{error}\n{_tail(log_path)}") from None
        ready_s = time.perf_counter() - started
        yield RunningServer(
            port=port, pid=process.pid, model=_served_model(port, _key_of(environment)), ready_s=ready_s
        )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], name: str, url: str, deadline: float) -> None:
    while True:
        if process.poll() is not None:
            raise ServerFailed(f"{name} ended with exit code {process.returncode}")
        if time.perf_counter() > deadline:
            raise ServerFailed(f"{name} was not ready in time")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)


def _key_of(environment: Mapping[str, str] | None) -> str:
    """A key that the server takes, if it wants one."""
    return (environment or {}).get("WYE_API_KEYS", "").partition(",")[0]


def _served_model(port: int, key: str) -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        name: str = json.load(answer)["data"][0]["id"]
        return name


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks the server to drain; kills its whole session if it does not within a minute."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log_path: Path | None, num_lines: int = 30) -> str:
    if log_path is None:
        return ""
    return "\n".join(log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:])
