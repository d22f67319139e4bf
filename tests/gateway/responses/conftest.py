"""A client of an app with a store, over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, scripted_client


@pytest.fixture
async def client(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app that stores responses."""
    async with scripted_client(engine, model, redis_url=redis_url) as client:
        yield client
