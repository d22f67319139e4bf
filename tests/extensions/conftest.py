"""Programs over an engine with a tiny model, one for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.extensions.programs.stage import Stage, real_stage
from tests.tiny_models import write_tiny_model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """A stage with an engine of its own, which checks after each step what it holds; a test fails if tasks are left."""
    async with real_stage(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")) as stage:
        yield stage
