"""An app with tenants over a real redis-server, and a scripted engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from fastapi import FastAPI

from engine.text.model import TextModel
from gateway.app import create_app
from gateway.services import Services
from gateway.tenancy.build import Tenancy
from gateway.tenancy.directory import Directory
from gateway.tenancy.keys import NewKey
from gateway.tenancy.limits import KeyLimits, TenantLimits
from gateway.tenancy.principal import Principal
from tests.fakes import MODEL, ScriptedEngine, make_settings

ADMIN_KEY = "the-administrators-key"
OPERATOR_KEY = "a-key-of-the-settings"
BY = Principal(owner="", is_admin=True)

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


class Served:
    """A gateway with tenants.

    Attributes:
        app: The application.
        client: Talks to it, without a key of its own.
        tenants: What it knows of them.
        engine: Behind it.
    """

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, tenants: Tenancy, engine: ScriptedEngine) -> None:
        self.app = app
        self.client = client
        self.tenants = tenants
        self.engine = engine

    @property
    def directory(self) -> Directory:
        """Tenants and keys."""
        return self.tenants.directory

    async def key(
        self,
        limits: TenantLimits | None = None,
        *,
        name: str = "acme",
        key_limits: KeyLimits | None = None,
        scopes: tuple[str, ...] = (),
    ) -> NewKey:
        """A key of a new tenant."""
        tenant = await self.directory.create_tenant(BY, name, limits)
        _, made = await self.directory.create_key(BY, tenant.id, "k", scopes=scopes, limits=key_limits)
        return made

    async def tenant_of(self, key: NewKey) -> str:
        """Id of a key's tenant."""
        record = await self.tenants.store.key(key.key_id)
        assert record is not None
        return record["tenant"]

    async def chat(self, key: str, **fields: object) -> httpx.Response:
        """Asks the model something."""
        return await self.client.post("/v1/chat/completions", json={**CHAT, **fields}, headers=bearer(key))

    async def get(self, path: str, key: str) -> httpx.Response:
        """Reads a path."""
        return await self.client.get(path, headers=bearer(key))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits until something holds.

    Raises:
        TimeoutError: It does not.
    """
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - there is no event for what Redis has
            await asyncio.sleep(0.01)


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
async def served(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[Served]:
    """A gateway with tenants, an administrator and one key of the settings."""
    settings = make_settings(redis_url=redis_url, admin_key=ADMIN_KEY, api_keys=(OPERATOR_KEY,))
    app = create_app(settings, engine=engine, text=model)
    services: Services = app.state.services
    assert services.tenants is not None
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        yield Served(app, client, services.tenants, engine)
    await services.aclose()
