"""A gateway over a small real engine, for requests that programs answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, SchedulingConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from gateway.state.embedded import EmbeddedRedis
from tests.fakes import make_settings
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("programs") / "tiny", "llama")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=128),
        scheduling=SchedulingConfig(max_num_seqs=16),
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(engine: EngineConnection, directory: Path, redis_server: EmbeddedRedis) -> AsyncIterator[FastAPI]:
    settings = make_settings(api_keys=("ann", "bob"), program_exec_s=2.0, max_extension_versions=6)
    app = create_app(settings, engine=engine, text=TextModel.load(directory), store_url=redis_server.url)
    yield app
    await app.state.services.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Ann's."""
    async with client_of(app, "ann") as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stranger(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Bob's."""
    async with client_of(app, "bob") as client:
        yield client


def client_of(app: FastAPI, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=120, headers=headers)
