"""Whole servers, started as a user starts them: supervisor, engine process and gateway workers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from engine.sources.store import ModelStore
from loadtests.server import CHECKOUT, RunningServer, running_server
from tests.fakes import MODEL
from tests.tiny_models import write_tiny_model

NUM_PAGES = 40
"""Of 16 tokens: small enough that a few requests wait for each other and preempt."""

POOL_TOKENS = NUM_PAGES * 16


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose context of 2048 is larger than the pool."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama", max_position_embeddings=2048)


@pytest.fixture(scope="session")
def start_options() -> list[str]:
    """Options of a server of the tiny model; in float32, so that answers do not depend on what else runs."""
    return ["--served-model-name", MODEL, "--weights", "float32", "--threads", "1", "--kv-pages", str(NUM_PAGES)]


@pytest.fixture(scope="session")
def server(
    tiny_model: Path, start_options: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """Two workers in front of one engine; no test may end any of its processes."""
    log_path = tmp_path_factory.mktemp("server") / "log"
    environment = {"OMP_NUM_THREADS": "1", "WYE_HEARTBEAT_S": "0.2"}
    args = [*start_options, "--workers", "2"]
    with running_server(str(tiny_model), args=args, log_path=log_path, environment=environment) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to the server."""
    async with connect(server) as client:
        yield client


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of SmolLM2, if it has been fetched."""
    if ModelStore(Path(os.environ.get("WYE_HOME") or CHECKOUT / ".wye")).find("smollm2-135m") is None:
        pytest.skip("smollm2-135m is not in the model store: run `make model`")
    log_path = tmp_path_factory.mktemp("server") / "log"
    args = ["--served-model-name", MODEL, "--served-model-name", "smollm2-135m", "--kv-pages", "256"]
    with running_server("smollm2-135m", args=args, log_path=log_path) as running:
        yield running


@pytest.fixture
async def real_client(real_server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to the server of the real model."""
    async with connect(real_server) as client:
        yield client


def connect(server: RunningServer) -> httpx.AsyncClient:
    """A client of a server, with room for many connections."""
    limits = httpx.Limits(max_connections=400)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120, limits=limits)
