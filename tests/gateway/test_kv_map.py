"""GET /v1/admin/kv: the pool page by page, for administrators."""

from __future__ import annotations

import httpx
import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, scripted_client
from tests.gateway.wire import CHAT, Body, chat, error_of

PATH = "/v1/admin/kv"
ADMIN = "the-key-of-the-administrator"


async def test_what_is_kept_is_shown_with_its_lease_and_its_pages(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    assert (await client.get(PATH)).json()["holders"] == []
    kept = (await client.post(CHAT, json=chat(retention={"ttl_s": 60}))).json()["retention"]
    found: Body = (await client.get(PATH)).json()
    (holder,) = found["holders"]
    assert (holder["kind"], holder["lease"]["value"]) == ("kept", 0.5)
    assert holder["pages"] * found["page_bytes"] == kept["bytes"]
    lengths, owners, sharers = (found["device"]["runs"][at::3] for at in range(3))
    assert (sum(lengths), owners, sharers) == (engine.info.num_pages, [0, -1], [1, 0])


async def test_an_engine_that_is_gone_is_told(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.die()
    assert error_of(await client.get(PATH), 503)["code"] == "engine_stopped"


@pytest.mark.parametrize(("keys", "status"), [(("one",), 200), (("one", "two"), 403)])
async def test_one_of_several_keys_does_not_see_what_the_others_hold(
    engine: ScriptedEngine, model: TextModel, keys: tuple[str, ...], status: int
) -> None:
    async with scripted_client(engine, model, api_keys=keys) as client:
        answer = await client.get(PATH, headers={"authorization": "Bearer one"})
    assert answer.status_code == status
    if status == 403:
        assert error_of(answer, 403)["code"] == "admin_key_required"


async def test_with_tenants_it_is_for_administrators_alone(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    fields = {"admin_key": ADMIN, "api_keys": ("one",), "redis_url": redis_url}
    async with scripted_client(engine, model, **fields) as client:
        assert (await client.get(PATH, headers={"authorization": f"Bearer {ADMIN}"})).status_code == 200
        refused = await client.get(PATH, headers={"authorization": "Bearer one"})
        assert error_of(refused, 403)["code"] == "admin_key_required"
        error_of(await client.get(PATH), 401)
