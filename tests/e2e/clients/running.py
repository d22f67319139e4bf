"""Runs the program of a client library against the servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docs.pages import ROOT
from engine.text.model import TextModel
from gateway.state.embedded import EmbeddedRedis, find_server
from loadtests.server import RunningServer as RealServer
from tests.documentation.blocks import client_examples
from tests.e2e.clients.clients import HERE, Client
from tests.e2e.clients.installing import environment_of, node_of, python_of
from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import Target
from tests.e2e.clients.scenarios import NUM_CACHED_TOKENS, DirectedEngine
from tests.fakes import MODEL, running_server

PROGRAM_TIMEOUT_S = 600
KEY = "matrix-key"
REAL_MODEL = "smollm2-135m"
DOCUMENTED_URL = "http://127.0.0.1:8000"

Cell = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came out for one client.

    Attributes:
        package: What was tried.
        version: Of the package.
        cells: State of each feature, and why.
    """

    package: str
    version: str
    cells: Mapping[str, Cell]


def run_client(client: Client, where: Path, text: TextModel, state: Path, real: RealServer | None) -> Outcome:
    """Installs a client if need be, and runs its checks.

    Args:
        client: Which.
        where: Directory of all environments.
        text: Of the scripted engine.
        state: Where the server keeps responses, files and batches.
        real: Server of the real model; without it nothing is asked of it.

    Raises:
        ClientUnavailable: It cannot be installed.
        AssertionError: The program ended early, or the scripted server was left in disorder.
    """
    environment = environment_of(client, where)
    engine = DirectedEngine(text)
    settings = {"api_keys": (KEY,), "tool_format": "hermes", "files_dir": str(state / "files")}
    with _running_redis(state) as redis_url, running_server(engine, text, redis_url=redis_url, **settings) as server:
        printed = _run_program(client, environment, _target(client, server.url, text, real))
    assert not engine.faults, engine.faults
    assert not engine.streams
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return Outcome(package=found["package"], version=found["version"], cells=found["cells"])


@contextlib.contextmanager
def _running_redis(directory: Path) -> Iterator[str]:
    directory.mkdir()
    redis = EmbeddedRedis(directory, find_server())
    redis.start()
    try:
        yield redis.url
    finally:
        redis.stop()


def snippet_of(client: Client) -> str:
    """The client's first lines in docs/clients.md."""
    return client_examples((ROOT / "docs" / "clients.md").read_text(encoding="utf-8"))[client.snippet]


def _target(client: Client, url: str, text: TextModel, real: RealServer | None) -> Target:
    return Target(
        url=f"{url}/v1",
        key=KEY,
        model=MODEL,
        num_hello_tokens=len(text.tokenizer.encode(lines.HELLO, add_special=False)) + 1,
        num_cached_tokens=NUM_CACHED_TOKENS,
        real_url=None if real is None else real.url,
        real_model=REAL_MODEL,
        snippet=None if real is None else snippet_of(client).replace(DOCUMENTED_URL, real.url.removesuffix("/v1")),
    )


def _run_program(client: Client, environment: Path, target: Target) -> str:
    argument = json.dumps(asdict(target))
    if not client.is_node:
        module = f"tests.e2e.clients.programs.{client.program}"
        return _run([str(python_of(environment)), "-m", module, argument], ROOT)
    # Modules are looked up from where a script lies, so the scripts must lie in the environment.
    with tempfile.TemporaryDirectory(prefix="run-", dir=environment) as directory:
        for script in (HERE / "programs").glob("*.mjs"):
            shutil.copy(script, directory)
        Path(directory, "lines.json").write_text(json.dumps(_constants()), encoding="utf-8")
        if target.snippet is not None:
            Path(directory, "snippet.mjs").write_text(target.snippet, encoding="utf-8")
        return _run([str(node_of(environment)), client.program, argument], Path(directory))


def _constants() -> dict[str, Any]:
    return {name: value for name, value in vars(lines).items() if name.isupper()}


def _run(command: list[str], directory: Path) -> str:
    # Nothing of the caller's own accounts or proxies, and no telemetry: only the servers here are to be asked.
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.search(name)}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**kept, **_QUIET},
        capture_output=True,
        text=True,
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, bool(done.stdout)) == (0, True), (
        f"{command[:-1]} ended with {done.returncode}: {done.stderr[-4000:]}"
    )
    return done.stdout


_FOREIGN = re.compile(r"^(OPENAI|LITELLM|LANGCHAIN|LANGSMITH|LOGFIRE|OTEL)_|_proxy$|PYTHON(PATH|HOME)", re.IGNORECASE)
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "DO_NOT_TRACK": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "NO_COLOR": "1",
}
