"""A tool box, and a service for it to talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from extensions.tools.box import ToolBox
from extensions.tools.catalog import ToolCaller
from tests.extensions.tools.service import Service, served

CALLER = ToolCaller(account="ada", run_id="run_1")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service that runs."""
    one = Service()
    async with served(one.app()) as url:
        one.url = url
        yield one
        one.release.set()


@pytest.fixture
async def box() -> AsyncIterator[ToolBox]:
    """A box that allows what a box allows by itself."""
    one = ToolBox()
    yield one
    await one.aclose()
