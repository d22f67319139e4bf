"""Stages that end clean: over a scripted engine, and over a real one with a tiny model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from tests.extensions.programs.stage import Stage, scripted_stage, until
from tests.tiny_models import write_tiny_model


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Programs over a scripted engine; the test fails if anything is left of them."""
    made = scripted_stage()
    yield made
    await made.aclose()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    """A real engine of that model, with 64 pages; none may be in use in the end."""
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=64)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine
        await until(lambda: engine.stats.num_used_pages == 0)


@pytest.fixture
async def real_stage(engine: EngineConnection, directory: Path) -> AsyncIterator[Stage]:
    """Programs over that engine; the test fails if anything is left of them."""
    made = Stage(engine, TextModel.load(directory))
    yield made
    await made.aclose()
