"""A tokenizer, a scripted engine and a client for each test."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, says, scripted_client, text_model
from tests.gateway.state.server import redis_server, redis_url

__all__ = ["redis_server", "redis_url"]


@pytest.fixture(scope="session")
def model() -> TextModel:
    """A small text model, without an opening token."""
    return text_model()


@pytest.fixture
def root_logging_as_it_was() -> Iterator[None]:
    """Leaves the log of the process as the test found it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def engine(model: TextModel) -> ScriptedEngine:
    """Says `Hello there.` unless a test gives it another script."""
    return ScriptedEngine(model, says(model, "Hello there."))


@pytest.fixture
async def client(engine: ScriptedEngine, model: TextModel) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app over `engine`."""
    async with scripted_client(engine, model) as client:
        yield client
