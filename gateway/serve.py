"""The supervisor: one engine process, some gateway workers, and everything that keeps them going or ends them.

    wye serve ── supervisor ──┬── redis-server        private, unless a Redis is given by URL; ended last
                              ├── engine process      ends when its standard input ends
                              └── gateway workers     end when the lifeline ends

The supervisor imports neither torch nor the web framework. A dead engine or worker is started again with growing
pauses, until it has died quickly too often. SIGINT, SIGTERM and SIGHUP drain: workers finish what is in flight, then
the engine stops. A second signal ends all at once. If the supervisor itself is killed, its children end by themselves.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from engine.errors import ModelLoadError
from engine.request import EngineInfo
from gateway.children import EngineHandle, EngineKeeper, WorkerKeeper, describe_exit
from gateway.failures import EXIT_BAD_MODEL, GaveUp
from gateway.lifeline import Lifeline
from gateway.listening import listen, url_of
from gateway.restarts import RestartPolicy
from gateway.rundir import run_directory
from gateway.settings import Settings, WorkerSettings
from gateway.signals import SignalInbox
from gateway.state.embedded import EmbeddedRedis
from gateway.state.private import private_redis
from gateway.stopping import ENGINE_GRACE_S, WORKER_GRACE_S

EXIT_OK = 0
EXIT_FORCED = 130

_POLL_S = 0.25
_LOADING_POLL_S = 0.05


class Reporter(Protocol):
    """Told what happens, for people."""

    def stage(self, message: str) -> None:
        """Something that takes a while has begun."""
        ...

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Requests are served."""
        ...

    def note(self, message: str) -> None:
        """Something worth a line happened."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServePlan:
    """What to run.

    Attributes:
        settings: Of the gateway; `workers` and `drain_s` are used here too.
        model_path: Directory or file that workers read tokenizer and template from.
        make_engine: Makes an engine process that serves a ZeroMQ endpoint.
        state_dir: Where a private Redis keeps its data, unless the settings say; None runs none.
        worker_module: Program of one gateway worker.
        restarts: Patience with processes that die.
        grace_s: Seconds beside `drain_s` before a worker that does not end is killed.
    """

    settings: Settings
    model_path: Path
    make_engine: Callable[[str], EngineHandle]
    state_dir: Path | None = None
    worker_module: str = "gateway.worker"
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    grace_s: float = WORKER_GRACE_S


def serve(plan: ServePlan, listener: socket.socket, reporter: Reporter) -> int:
    """Runs until told to stop. Belongs to the main thread.

    Args:
        plan: What to run.
        listener: A bound socket, see `gateway.listening`; it stays the caller's to close.
        reporter: Told what happens.

    Returns:
        Exit code: 0 after a drain, 130 after a second signal.

    Raises:
        EngineError: The engine could not load; the message says why.
        GaveUp: Engine or worker could not be kept running.
        AddressUnavailable: Another program has taken the address meanwhile.
    """
    with (
        run_directory() as run_dir,
        SignalInbox() as signals,
        private_redis(plan.settings, plan.state_dir, reporter.note) as redis,
        Lifeline() as lifeline,
    ):
        return _Supervisor(plan, listener, reporter, signals, lifeline, run_dir, redis).run()


class _Supervisor:
    """One run, from the first start to the last stop."""

    def __init__(
        self,
        plan: ServePlan,
        listener: socket.socket,
        reporter: Reporter,
        signals: SignalInbox,
        lifeline: Lifeline,
        run_dir: Path,
        redis: EmbeddedRedis | None,
    ) -> None:
        self._plan = plan
        self._redis = redis
        self._listener = listener
        self._reporter = reporter
        self._signals = signals
        endpoint = f"ipc://{run_dir}/engine"
        self._engine = EngineKeeper(lambda: plan.make_engine(endpoint), plan.restarts, reporter.note)
        self._workers = [
            WorkerKeeper(
                lifeline.command(plan.worker_module),
                self._worker_settings(index, endpoint, run_dir),
                (listener.fileno(), lifeline.child_fd),
                plan.restarts,
                reporter.note,
            )
            for index in range(plan.settings.workers)
        ]

    def run(self) -> int:
        """Starts, watches, drains."""
        try:
            started_s = time.monotonic()
            self._start()
            if self._await_ready():
                assert self._engine.info is not None
                took_s = time.monotonic() - started_s
                self._reporter.ready(url_of(self._listener), self._engine.info, took_s)
                self._watch()
                return self._drain()
            return EXIT_OK
        finally:
            for worker in self._workers:
                worker.kill()
            self._engine.stop(0)

    def _start(self) -> None:
        self._reporter.stage("starting")
        listen(self._listener)
        self._engine.start(time.monotonic())
        for worker in self._workers:
            worker.start(time.monotonic())

    def _await_ready(self) -> bool:
        """True when requests are answered; False when told to stop before.

        The first load has no second chance: what fails now would fail again.
        """
        self._reporter.stage("loading the model")
        while not self._engine.is_ready:
            if self._is_stopped(_LOADING_POLL_S):
                return False
            self._engine.check_loading()
            self._check_workers_started()
        self._reporter.stage("starting the gateway")
        while not (self._engine.is_ready and _answers_ready(url_of(self._listener))):
            if self._is_stopped(_LOADING_POLL_S):
                return False
            self._engine.poll(time.monotonic())  # it has loaded once, so it may load again
            self._check_workers_started()
        return True

    def _check_workers_started(self) -> None:
        for code in (worker.exit_code for worker in self._workers):
            if code == EXIT_BAD_MODEL:
                raise ModelLoadError("the gateway cannot use this model: see the message of its worker above")
            if code is not None:
                raise GaveUp(f"a gateway worker ended while starting ({describe_exit(code)}): see its messages above")

    def _watch(self) -> None:
        while not self._is_stopped(_POLL_S):
            now_s = time.monotonic()
            self._engine.poll(now_s)
            if self._redis is not None:
                self._redis.poll(now_s)
            for worker in self._workers:
                worker.poll(now_s)

    def _drain(self) -> int:
        drain_s = self._plan.settings.drain_s
        self._reporter.note(f"stopping: requests in flight have {drain_s:g} s to finish; again to stop at once")
        for worker in self._workers:
            worker.terminate()
        deadline_s = time.monotonic() + drain_s + self._plan.grace_s
        while any(worker.exit_code is None for worker in self._workers):
            if self._signals.num_stops > 1:
                self._reporter.note("stopping at once")
                return EXIT_FORCED
            if time.monotonic() > deadline_s:
                self._reporter.note("some requests did not finish in time")
                break
            self._signals.wait(_POLL_S)
        self._engine.stop(ENGINE_GRACE_S)
        self._reporter.note("stopped")
        return EXIT_OK

    def _is_stopped(self, patience_s: float) -> bool:
        """Waits a moment for news; True once told to stop."""
        if not self._signals.num_stops:
            self._signals.wait(patience_s)
        return self._signals.num_stops > 0

    def _worker_settings(self, index: int, endpoint: str, run_dir: Path) -> WorkerSettings:
        metrics_dir = None
        if self._plan.settings.workers > 1:
            metrics_dir = run_dir / "metrics"
            metrics_dir.mkdir(exist_ok=True)
        return WorkerSettings(
            settings=self._plan.settings,
            engine_endpoint=endpoint,
            model_path=self._plan.model_path,
            socket_fd=self._listener.fileno(),
            index=index,
            store_url="" if self._redis is None else self._redis.url,
            files_dir=self._files_dir(),
            metrics_dir=metrics_dir,
        )

    def _files_dir(self) -> Path | None:
        """Files lie beside the data of the Redis that knows them."""
        if self._redis is not None:
            return self._redis.directory / "files"
        state_dir = self._plan.settings.state_dir
        directory = Path(state_dir).expanduser() if state_dir else self._plan.state_dir
        return None if directory is None else directory / "files"


def _answers_ready(url: str) -> bool:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=1.0)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
