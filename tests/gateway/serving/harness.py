"""The supervisor as a program, with an engine process that does nothing, telling what happens as JSON lines.

Its one argument is a JSON object: `workers`, `drain_s`, `engine` (`ok`, `fails`, `dies`, `loads_forever`), `policy`,
`grace_s`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine.errors import EngineStopped, ModelLoadError
from engine.request import EngineInfo, GenerationDefaults
from gateway.failures import ServeError
from gateway.listening import bind_socket
from gateway.restarts import RestartPolicy
from gateway.serve import ServePlan, serve
from gateway.settings import Settings
from gateway.stopping import WORKER_GRACE_S

INFO = EngineInfo(
    epoch="0",
    model_path="model",
    architecture="llama",
    fingerprint="00",
    vocab_size=100,
    hidden_size=4,
    eos_token_ids=(2,),
    max_model_len=8192,
    page_size=16,
    num_pages=1000,
    page_bytes=1 << 16,
    device="cpu",
    step="torch",
    dtype="bfloat16",
    kv_dtype="bfloat16",
    attention_backend="cpu",
    defaults=GenerationDefaults(),
    num_parameters=135_000_000,
    load_s=0.5,
)


def tell(event: str, **fields: Any) -> None:
    """Prints one event."""
    print(json.dumps({"event": event, **fields}), flush=True)


class FakeEngine:
    """Implements `gateway.children.EngineHandle` with a child that waits for the end of its standard input."""

    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the child."""
        code = "import sys, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.stdin.read()"
        if self._behaviour == "dies":
            code = "import sys; sys.exit(9)"
        self._child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        tell("engine", pid=self._child.pid)

    def wait_ready(self, timeout_s: float | None = None) -> EngineInfo:
        """As told."""
        if self._behaviour == "fails":
            raise ModelLoadError("config.json: no such architecture")
        if self._behaviour == "loads_forever":
            raise TimeoutError
        if self._behaviour == "dies" and not self.alive:
            raise EngineStopped("the engine process ended while loading (exit code 9)")
        return INFO

    @property
    def alive(self) -> bool:
        """True while the child runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The child's."""
        return None if self._child is None else self._child.poll()

    def stop(self, timeout_s: float = 5.0) -> int | None:
        """Ends the child."""
        if self._child is None:
            return None
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


class TellingReporter:
    """Tells everything."""

    def stage(self, message: str) -> None:
        """A stage."""
        tell("stage", message=message)

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Ready."""
        tell("ready", url=url)

    def note(self, message: str) -> None:
        """A line."""
        tell("note", message=message)


def main(options: dict[str, Any]) -> int:
    """Runs the supervisor; returns its exit code, 1 for an error."""
    settings = Settings(port=0, workers=options.get("workers", 1), drain_s=options.get("drain_s", 10))
    behaviours = list(options.get("engine", ["ok"]))

    def make_engine(endpoint: str) -> FakeEngine:
        return FakeEngine(behaviours.pop(0) if len(behaviours) > 1 else behaviours[0])

    policy = RestartPolicy(**{"first_delay_s": 0.05, "max_delay_s": 0.1, **options.get("policy", {})})
    plan = ServePlan(
        settings=settings,
        model_path=Path("model"),
        make_engine=make_engine,
        worker_module="tests.gateway.serving.fake_worker",
        restarts=policy,
        grace_s=options.get("grace_s", WORKER_GRACE_S),
    )
    with bind_socket(settings.host, settings.port) as listener:
        try:
            return serve(plan, listener, TellingReporter())
        except (ServeError, ModelLoadError, EngineStopped) as error:
            tell("error", kind=type(error).__name__, message=str(error))
            return 1
        finally:
            tell("end", seconds=time.monotonic())


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
