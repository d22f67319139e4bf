"""What programs reach of the registry, for whoever pays for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from engine.text.model import TextModel
from extensions.tools.catalog import ToolCaller
from extensions.tools.errors import ToolDenied, ToolFailed, ToolNotFound, ToolOutcomeUnknown
from gateway.app import create_app
from gateway.tools.catalog import CallerCatalog
from tests.extensions.tools.mcp_server import Server
from tests.extensions.tools.service import Service
from tests.fakes import ScriptedEngine, make_settings
from tests.gateway.wire import chat, whole

PROGRAM = """
async def main(request, lm):
    weather = await lm.tool("weather", city="Oslo")
    total = await lm.mcp("files").call("add", {"a": 2, "b": 3})
    try:
        await lm.tool("guarded", city="Oslo")
    except PermissionError as error:
        return [weather["degrees"], total, str(error).split(":")[0]]
"""


@pytest.fixture
async def catalog(app: FastAPI) -> CallerCatalog:
    found: CallerCatalog = app.state.services.tools.catalog(ToolCaller(account="ann", run_id="run_1"))
    return found


@pytest.fixture
async def lonely(
    engine: ScriptedEngine, model: TextModel, tools_file: Path, tmp_path: Path
) -> AsyncIterator[CallerCatalog]:
    """Of a server whose Redis is away."""
    settings = make_settings(tools_file=str(tools_file), redis_url=f"unix://{tmp_path}/none.sock")
    app = create_app(settings, engine=engine, text=model)
    yield app.state.services.tools.catalog(ToolCaller(account="ann", run_id="run_1"))
    await app.state.services.aclose()


async def test_a_program_calls_registered_tools_and_servers(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(extension={"source": PROGRAM}))
    assert answer["extension"]["result"] == [21, {"result": 5}, "tool_denied"]


async def test_tools_are_listed_without_those_that_wait_for_a_person(catalog: CallerCatalog) -> None:
    assert [one.name for one in await catalog.names()] == ["late", "order", "slow", "weather"]
    assert {"add", "read", "fail"} <= {one.name for one in await catalog.mcp_tools("files")}


async def test_a_servers_tool_has_a_name_for_models(catalog: CallerCatalog, mcp: Server) -> None:
    for name in ("files/add", "files__add"):
        assert (await catalog.find(name)).name == "files__add"
        assert (await catalog.call(name, {"a": 1, "b": 2})).text == "3"
    assert len(mcp.calls) == 2


async def test_what_is_not_there_or_not_allowed_says_so(catalog: CallerCatalog) -> None:
    for name in ("nothing", "files/nothing", "nothing/add", "weather/x"):
        with pytest.raises(ToolNotFound):
            await catalog.find(name)
    for label in ("nothing", "weather"):
        with pytest.raises(ToolNotFound):
            await catalog.mcp_tools(label)
    with pytest.raises(ToolDenied):
        await catalog.call("guarded", {"city": "x"})


async def test_work_under_a_key_is_done_once(catalog: CallerCatalog, service: Service) -> None:
    first = await catalog.call("order", {"city": "Oslo"}, key="one")
    again = await catalog.call("order", {"city": "Oslo"}, key="one")
    assert again == first
    assert len(service.calls) == 1
    await catalog.call("order", {"city": "Oslo"}, key="two")
    await catalog.call("order", {"city": "Oslo"})
    sent = [headers["idempotency-key"] for _, _, headers, _ in service.calls]
    assert len(set(sent)) == 3


async def test_work_whose_outcome_nobody_knows_is_not_done_again(catalog: CallerCatalog, service: Service) -> None:
    for _ in range(2):
        with pytest.raises(ToolOutcomeUnknown):
            await catalog.call("late", {"city": "Oslo"}, key="one")
    assert len(service.calls) == 1


async def test_the_operators_tools_outlive_a_redis_and_others_say_what_is_wrong(lonely: CallerCatalog) -> None:
    assert (await lonely.call("weather", {"city": "Oslo"})).json["degrees"] == 21
    with pytest.raises(ToolFailed, match="store_unavailable"):
        await lonely.find("mine")
    with pytest.raises(ToolFailed, match="store_unavailable"):
        await lonely.call("order", {"city": "Oslo"}, key="one")
