"""A gateway over a scripted engine, with tools that are really there: an HTTP service and an MCP server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from engine.text.model import TextModel
from gateway.app import create_app
from tests.extensions.tools.mcp_server import Server
from tests.extensions.tools.service import Service, served
from tests.fakes import ScriptedEngine, make_settings


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """An HTTP service that runs."""
    one = Service()
    async with served(one.app()) as url:
        one.url = url
        yield one
        one.release.set()


@pytest.fixture
def mcp() -> Server:
    """An MCP server, which `mcp_url` serves."""
    return Server()


@pytest.fixture
async def mcp_url(mcp: Server) -> AsyncIterator[str]:
    """Where the MCP server is."""
    async with served(mcp.mcp.streamable_http_app()) as url:
        yield f"{url}/mcp"


def city_tool(name: str, url: str, **more: Any) -> dict[str, Any]:
    """A tool that asks for a city."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"name": name, "kind": "http", "parameters": parameters, "http": {"url": url}, "timeout_s": 300} | more


@pytest.fixture
def tools_file(tmp_path: Path, service: Service, mcp_url: str) -> Path:
    """What the operator has."""
    weather = city_tool("weather", service.url + "/weather/{city}", effect="pure", description="Tells the weather.")
    echo = city_tool("order", service.url + "/echo")
    slow = city_tool("slow", service.url + "/slow")
    late = city_tool("late", service.url + "/slow", timeout_s=0.2)
    guarded = city_tool("guarded", service.url + "/echo", require_approval="always")
    files = {"label": "files", "url": mcp_url, "effects": {"add": "pure", "read": "pure"}, "timeout_s": 300}
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": [weather, echo, slow, late, guarded], "servers": [files]}))
    return path


@pytest.fixture
async def app(engine: ScriptedEngine, model: TextModel, redis_url: str, tools_file: Path) -> AsyncIterator[FastAPI]:
    """Serves with the operator's tools, for two tenants."""
    settings = make_settings(
        redis_url=redis_url,
        tools_file=str(tools_file),
        tool_format="hermes",
        api_keys=("ann", "bob"),
        max_tools=3,
        max_tool_calls=4,
    )
    app = create_app(settings, engine=engine, text=model)
    yield app
    await app.state.services.aclose()


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Ann's."""
    async with client_of(app, "ann") as client:
        yield client


@pytest.fixture
async def stranger(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Bob's."""
    async with client_of(app, "bob") as client:
        yield client


def client_of(app: FastAPI, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60, headers=headers)
