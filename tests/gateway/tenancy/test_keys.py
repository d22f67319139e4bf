"""Keys of tenants: what they open, from when on, and until when."""

from __future__ import annotations

import httpx
import pytest

from engine.text.model import TextModel
from gateway.app import create_app
from gateway.errors import BadRequest, Conflict
from gateway.tenancy.keys import make_key, read_key, redacted
from gateway.tenancy.limits import TenantLimits
from tests.fakes import ScriptedEngine, make_settings, scripted_client
from tests.gateway.tenancy.conftest import ADMIN_KEY, BY, CHAT, OPERATOR_KEY, Served, bearer


async def test_a_key_of_a_tenant_opens_the_model(served: Served) -> None:
    key = await served.key()
    answer = await served.chat(key.value)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "Hello there."


async def test_the_engine_charges_the_tenant_and_shares_pages_within_it_alone(served: Served) -> None:
    key = await served.key()
    tenant = await served.tenant_of(key)
    await served.chat(key.value)
    await served.chat(key.value, cache_salt="mine")
    accounts = [(one.account, one.salt) for one in served.engine.requests]
    assert accounts == [(tenant, tenant), (tenant, f"{tenant}\0mine")]


async def test_no_salt_of_a_request_is_that_of_another_tenant(served: Served) -> None:
    key, other = await served.key(), await served.key(name="other")
    await served.chat(key.value, cache_salt=await served.tenant_of(other))
    await served.chat(other.value)
    assert served.engine.requests[0].salt != served.engine.requests[1].salt


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer ", "Bearer nonsense", "Basic abc", f"Bearer sk-wye-{'0' * 16}-{'A' * 43}", "Bearer sk-wye-short"],
)
async def test_what_is_no_key_of_anybody_is_refused(served: Served, authorization: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    answer = await served.client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert not served.engine.requests


async def test_a_wrong_secret_of_a_known_key_is_refused(served: Served) -> None:
    key = await served.key()
    answer = await served.chat(key.value[:-1] + ("A" if key.value[-1] != "A" else "B"))
    assert answer.status_code == 401


async def test_a_disabled_key_opens_nothing_from_the_next_request_on(served: Served) -> None:
    key = await served.key()
    tenant = await served.tenant_of(key)
    await served.directory.change_key(BY, tenant, key.key_id, is_disabled=True)
    for answer in (await served.chat(key.value), await served.get("/v1/models", key.value)):
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "api_key_disabled"
    await served.directory.change_key(BY, tenant, key.key_id, is_disabled=False)
    assert (await served.chat(key.value)).status_code == 200


async def test_a_change_holds_on_every_worker_at_once(served: Served, model: TextModel, redis_url: str) -> None:
    key = await served.key()
    other = create_app(make_settings(redis_url=redis_url, admin_key=ADMIN_KEY), engine=served.engine, text=model)
    transport = httpx.ASGITransport(other)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/v1/models", headers=bearer(key.value))).status_code == 200
        await served.directory.delete_key(BY, await served.tenant_of(key), key.key_id)
        assert (await client.get("/v1/models", headers=bearer(key.value))).status_code == 401
    await other.state.services.aclose()


async def test_an_expired_key_says_so(served: Served) -> None:
    key = await served.key()
    await served.tenants.redis.hset(f"{{wye}}:q:key:{key.key_id}", "expires", "1000")
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "api_key_expired")


async def test_a_rotated_key_has_two_secrets_for_the_overlap_and_then_one(served: Served) -> None:
    key = await served.key()
    tenant = await served.tenant_of(key)
    _, new = await served.directory.rotate_key(BY, tenant, key.key_id, overlap_s=60)
    assert new.key_id == key.key_id
    assert (await served.chat(key.value)).status_code == 200
    assert (await served.chat(new.value)).status_code == 200
    await served.tenants.redis.hset(f"{{wye}}:q:key:{key.key_id}", "old_until", "1000")
    assert (await served.chat(key.value)).status_code == 401
    assert (await served.chat(new.value)).status_code == 200


async def test_a_key_rotated_without_overlap_has_one_secret(served: Served) -> None:
    key = await served.key()
    _, new = await served.directory.rotate_key(BY, await served.tenant_of(key), key.key_id)
    assert (await served.chat(key.value)).status_code == 401
    assert (await served.chat(new.value)).status_code == 200


async def test_a_key_without_a_scope_is_told_which_one_it_lacks(served: Served) -> None:
    key = await served.key(scopes=("models",))
    assert (await served.get("/v1/models", key.value)).status_code == 200
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
    assert "'inference'" in answer.json()["error"]["message"]


async def test_a_key_that_may_chat_may_not_bring_a_program(served: Served) -> None:
    key = await served.key(scopes=("inference",))
    source = "async def main(request, lm):\n    return 'hi'\n"
    answer = await served.chat(key.value, extension={"source": source})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
    assert (await served.chat(key.value)).status_code == 200
    both = await served.key(scopes=("inference", "programs"))
    assert (await served.chat(both.value, extension={"source": source})).status_code == 200


async def test_a_tenant_that_is_suspended_is_refused_and_comes_back(served: Served) -> None:
    key = await served.key()
    tenant = await served.tenant_of(key)
    await served.directory.change_tenant(BY, tenant, state="suspended")
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_suspended")
    await served.directory.change_tenant(BY, tenant, state="active")
    assert (await served.chat(key.value)).status_code == 200


async def test_a_tenant_that_is_archived_is_refused_for_good(served: Served) -> None:
    key = await served.key()
    tenant = await served.tenant_of(key)
    archived = await served.directory.change_tenant(BY, tenant, state="archived")
    for changed in ({"state": "active"}, {"name": "again"}, {"limits": TenantLimits()}):
        with pytest.raises(Conflict, match="archived"):
            await served.directory.change_tenant(BY, tenant, **changed)
    assert await served.directory.change_tenant(BY, tenant, state="archived") == archived
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_suspended")


async def test_keys_of_the_settings_stay_what_they_are(served: Served) -> None:
    answer = await served.chat(OPERATOR_KEY)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith(("x-ratelimit", "x-kv"))]


async def test_the_administrators_key_administers_and_does_nothing_else(served: Served) -> None:
    answer = await served.chat(ADMIN_KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    key = await served.key()
    answer = await served.get("/v1/organization/projects", key.value)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_key_required")


async def test_paths_for_load_balancers_need_no_key(served: Served) -> None:
    assert (await served.client.get("/health")).status_code == 200


async def test_without_an_administrators_key_nothing_needs_a_key(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    async with scripted_client(engine, model, redis_url=redis_url) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert (await client.get("/v1/organization/projects")).status_code == 404
    assert (engine.requests[0].account, engine.requests[0].salt) == ("", "")


async def test_tenants_without_a_redis_are_a_503_and_other_keys_work(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model, admin_key=ADMIN_KEY, api_keys=(OPERATOR_KEY,)) as client:
        answer = await client.get("/v1/models", headers=bearer(make_key().value))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "quota_store_unavailable")
        assert (await client.get("/v1/models", headers=bearer(OPERATOR_KEY))).status_code == 200


async def test_a_redis_that_does_not_answer_admits_nobody(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model, admin_key=ADMIN_KEY, redis_url="unix:///nowhere.sock") as client:
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=bearer(make_key().value))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "quota_store_unavailable")
    assert answer.headers["retry-after"]
    assert not engine.requests


async def test_a_redis_that_is_full_admits_nobody_and_keeps_what_it_has(served: Served) -> None:
    key = await served.key()
    redis = served.tenants.redis
    await redis.config_set("maxmemory", "1")
    try:
        answer = await served.chat(key.value)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "quota_store_unavailable")
    finally:
        await redis.config_set("maxmemory", "0")
    assert (await served.chat(key.value)).status_code == 200


async def test_a_redis_that_forgot_its_scripts_is_told_them_again(served: Served) -> None:
    key = await served.key()
    assert (await served.chat(key.value)).status_code == 200
    await served.tenants.redis.script_flush()
    assert (await served.chat(key.value)).status_code == 200


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201])
async def test_a_name_that_cannot_be_shown_is_refused(served: Served, name: str) -> None:
    with pytest.raises(BadRequest):
        await served.directory.create_tenant(BY, name)


async def test_any_printable_name_will_do(served: Served) -> None:
    tenant = await served.directory.create_tenant(BY, "../a/b.c|é {x}:y")
    assert (await served.directory.tenant(tenant.id)).name == "../a/b.c|é {x}:y"


def test_a_key_is_read_back_and_shown_without_its_secret() -> None:
    key = make_key()
    presented = read_key(key.value)
    assert presented is not None
    assert (presented.key_id, presented.digest) == (key.key_id, key.digest)
    shown = redacted(key.key_id, key.tail)
    assert shown.endswith(key.value[-4:])
    assert read_key(shown) is None
    assert key.digest not in shown


@pytest.mark.parametrize("key", ["short", "with spaces in between", "é" * 20])
def test_an_administrators_key_that_is_weak_stops_the_start(key: str) -> None:
    with pytest.raises(ValueError, match="at least 16"):
        make_settings(admin_key=key)
