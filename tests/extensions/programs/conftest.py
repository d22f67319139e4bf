"""A stage that ends clean."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.extensions.programs.stage import Stage, scripted_stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Programs over a scripted engine; the test fails if anything is left of them."""
    made = scripted_stage()
    yield made
    await made.aclose()
