"""Processes that are kept running: started, watched, started again after a pause, given up on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.errors import EngineError
from engine.request import EngineInfo
from gateway.failures import GaveUp
from gateway.restarts import RestartPolicy, Restarts
from gateway.settings import WorkerSettings


class EngineHandle(Protocol):
    """One engine process, as `engine.process.EngineProcess` has it."""

    def start(self) -> None:
        """Starts it, once."""
        ...

    def wait_ready(self, timeout_s: float | None = None) -> EngineInfo:
        """Raises `TimeoutError` while it loads, `EngineError` when it failed."""
        ...

    @property
    def alive(self) -> bool:
        """True while it runs."""
        ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    def stop(self, timeout_s: float = 5.0) -> int | None:
        """Ends it, by force after `timeout_s`."""
        ...


class EngineKeeper:
    """Keeps one engine running.

    Args:
        make: Makes a new engine process, not yet started.
        policy: Patience.
        note: Told of deaths and returns.
    """

    def __init__(self, make: Callable[[], EngineHandle], policy: RestartPolicy, note: Callable[[str], None]) -> None:
        self._make = make
        self._restarts = Restarts(policy)
        self._note = note
        self._engine: EngineHandle | None = None
        self._started_s = 0.0
        self._due_s: float | None = None
        self.info: EngineInfo | None = None

    @property
    def is_ready(self) -> bool:
        """True once it has said that it serves; it may have died since the last `poll`."""
        return self.info is not None

    def start(self, now_s: float) -> None:
        """Starts an engine."""
        self._engine, self._started_s, self._due_s, self.info = self._make(), now_s, None, None
        self._engine.start()

    def check_loading(self) -> None:
        """Looks whether a loading engine serves by now.

        Raises:
            EngineError: It cannot, or it died.
        """
        assert self._engine is not None
        with contextlib.suppress(TimeoutError):
            self.info = self._engine.wait_ready(0)

    def poll(self, now_s: float) -> None:
        """Starts it again when it has died and the pause is over.

        Raises:
            GaveUp: It has died quickly too often.
        """
        if self._due_s is not None:
            if now_s >= self._due_s:
                self.start(now_s)
            return
        assert self._engine is not None
        try:
            was_ready = self.is_ready
            self.info = self._engine.wait_ready(0)
            if not self._engine.alive:
                self._bury(describe_exit(self._engine.exit_code), now_s)
            elif not was_ready:
                self._note("the engine serves again")
        except TimeoutError:
            return
        except EngineError as error:
            self._bury(str(error), now_s)

    def stop(self, timeout_s: float) -> None:
        """Ends it. Idempotent."""
        if self._engine is not None:
            self._engine.stop(timeout_s)

    def _bury(self, cause: str, now_s: float) -> None:
        assert self._engine is not None
        self._engine.stop(0)
        self.info = None
        delay_s = self._restarts.delay_s(now_s - self._started_s)
        if delay_s is None:
            raise GaveUp(f"the engine process keeps dying ({cause}); giving up")
        self._note(f"the engine process died ({cause}); starting it again in {delay_s:g} s")
        self._due_s = now_s + delay_s


class WorkerKeeper:
    """Keeps one gateway worker running.

    Args:
        command: Its program.
        settings: What it is told, through its environment.
        descriptors: File descriptors it inherits.
        policy: Patience.
        note: Told of deaths.
    """

    def __init__(
        self,
        command: Sequence[str],
        settings: WorkerSettings,
        descriptors: Sequence[int],
        policy: RestartPolicy,
        note: Callable[[str], None],
    ) -> None:
        self._command = list(command)
        self._settings = settings
        self._descriptors = tuple(descriptors)
        self._restarts = Restarts(policy)
        self._note = note
        self._child: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._due_s: float | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or has not been started."""
        return None if self._child is None else self._child.poll()

    def start(self, now_s: float) -> None:
        """Starts a worker."""
        self._child = subprocess.Popen(
            self._command,
            env={**os.environ, **self._settings.environment()},
            stdin=subprocess.DEVNULL,
            pass_fds=self._descriptors,
            # A terminal's Ctrl-C is for the supervisor, which then asks the workers to drain.
            process_group=0,
        )
        self._started_s, self._due_s = now_s, None

    def poll(self, now_s: float) -> None:
        """Starts it again when it has died and the pause is over.

        Raises:
            GaveUp: It has died quickly too often.
        """
        if self._due_s is not None:
            if now_s >= self._due_s:
                self.start(now_s)
            return
        code = self.exit_code
        if code is None:
            return
        assert self._child is not None
        self._forget_gauges(self._child.pid)
        cause = describe_exit(code)
        delay_s = self._restarts.delay_s(now_s - self._started_s)
        if delay_s is None:
            raise GaveUp(f"gateway worker {self._settings.index} keeps dying ({cause}); giving up")
        self._note(f"gateway worker {self._settings.index} died ({cause}); starting it again in {delay_s:g} s")
        self._due_s = now_s + delay_s

    def terminate(self) -> None:
        """Asks it to finish what is in flight and end."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def kill(self) -> None:
        """Ends it now, and waits for that. Idempotent."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def _forget_gauges(self, pid: int) -> None:
        """Removes what a dead worker had last said of the present; its counters stay."""
        if self._settings.metrics_dir is not None:
            for path in self._settings.metrics_dir.glob(f"gauge_live*_{pid}.db"):
                path.unlink(missing_ok=True)


def describe_exit(code: int | None) -> str:
    """An exit code for people."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    return f"{name}; the system may be out of memory" if name == "SIGKILL" else name
