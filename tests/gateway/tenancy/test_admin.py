"""The API of administrators, asked by OpenAI's own SDK where it has the same."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import openai
import pytest

from gateway.tenancy.limits import TenantLimits
from tests.gateway.tenancy.conftest import ADMIN_KEY, BY, Served, bearer

ADMIN = bearer(ADMIN_KEY)
PROJECTS = "/v1/organization/projects"
LIMITS = "/v1/admin/kv_limits"


@pytest.fixture
async def sdk(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's SDK with an administrator's key."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(served.app))
    async with openai.AsyncOpenAI(
        admin_api_key=ADMIN_KEY, api_key="none", base_url="http://test/v1", http_client=http, max_retries=0
    ) as client:
        yield client


async def send(served: Served, path: str, body: Any) -> httpx.Response:
    """Posts something as an administrator."""
    return await served.client.post(path, json=body, headers=ADMIN)


async def test_projects_are_made_named_listed_and_archived(served: Served, sdk: openai.AsyncOpenAI) -> None:
    projects = sdk.admin.organization.projects
    made = await projects.create(name="a/b.c é")
    assert made.id.startswith("proj_")
    assert (made.name, made.status, made.object) == ("a/b.c é", "active", "organization.project")
    assert (await projects.update(made.id, name="new")).name == "new"
    assert (await projects.retrieve(made.id)).name == "new"
    other = await projects.create(name="other")
    assert [one.id async for one in projects.list(limit=1)] == [made.id, other.id]
    assert (await projects.archive(made.id)).status == "archived"
    assert [one.id async for one in projects.list()] == [other.id]
    assert [one.id async for one in projects.list(include_archived=True)] == [made.id, other.id]


async def test_a_service_account_comes_with_a_key_that_works_and_can_be_taken_away(
    served: Served, sdk: openai.AsyncOpenAI
) -> None:
    project = await sdk.admin.organization.projects.create(name="acme")
    accounts = sdk.admin.organization.projects.service_accounts
    made = await accounts.create(project.id, name="ci", expires_in_seconds=3600)
    assert made.api_key is not None
    assert (await served.chat(made.api_key.value)).status_code == 200
    second = await accounts.api_keys.create(made.id, project_id=project.id, name="second", scopes=["models"])
    assert (await served.chat(second.value)).status_code == 403
    assert [one.id async for one in accounts.list(project.id)] == [made.id]
    assert (await accounts.retrieve(made.id, project_id=project.id)).name == "ci"
    keys = sdk.admin.organization.projects.api_keys
    listed = [one async for one in keys.list(project.id)]
    assert [one.id for one in listed] == [made.api_key.id, second.id]
    assert made.api_key.value not in str(listed)
    assert listed[0].redacted_value.endswith(made.api_key.value[-4:])
    assert listed[0].expires_at == pytest.approx(time.time() + 3600, abs=60)
    assert listed[0].last_used_at == pytest.approx(time.time(), abs=60)
    assert listed[0].owner.service_account is not None
    assert (await keys.retrieve(second.id, project_id=project.id)).name == "second"
    assert (await keys.update(second.id, project_id=project.id, scopes=[])).id == second.id
    assert (await served.chat(second.value)).status_code == 200
    assert (await keys.delete(second.id, project_id=project.id)).deleted
    assert (await served.chat(second.value)).status_code == 401
    assert (await accounts.delete(made.id, project_id=project.id)).deleted
    assert (await served.chat(made.api_key.value)).status_code == 401


async def test_rates_are_changed_and_hold(served: Served, sdk: openai.AsyncOpenAI) -> None:
    key = await served.key()
    project = await served.tenant_of(key)
    limits = sdk.admin.organization.projects.rate_limits
    (entry,) = [one async for one in limits.list_rate_limits(project)]
    changed = await limits.update_rate_limit(entry.id, project_id=project, max_requests_per_1_minute=1)
    assert changed.max_requests_per_1_minute == 1
    assert [(await served.chat(key.value)).status_code for _ in range(2)] == [200, 429]


async def test_keys_of_administrators_are_made_and_forgotten(served: Served, sdk: openai.AsyncOpenAI) -> None:
    keys = sdk.admin.organization.admin_api_keys
    made = await keys.create(name="second")
    assert (await served.get(PROJECTS, made.value)).status_code == 200
    assert (await served.chat(made.value)).status_code == 403
    assert [one.id async for one in keys.list()] == [made.id]
    assert (await keys.retrieve(made.id)).name == "second"
    await keys.delete(made.id)
    assert (await served.get(PROJECTS, made.value)).status_code == 401


async def test_usage_is_told_by_the_groups_that_are_asked_for(served: Served, sdk: openai.AsyncOpenAI) -> None:
    key, other = await served.key(), await served.key(name="other")
    told = [(await served.chat(one.value)).json()["usage"] for one in (key, key, other)]
    await served.tenants.gate.settled()
    start = int(time.time()) - 7200
    page = await sdk.admin.organization.usage.completions(
        start_time=start, bucket_width="1h", group_by=["project_id", "api_key_id", "model"]
    )
    found: Any = [result for bucket in page.data for result in bucket.results]
    assert {one.api_key_id: (one.num_model_requests, one.input_tokens, one.output_tokens) for one in found} == {
        key.key_id: (2, 2 * told[0]["prompt_tokens"], 2 * told[0]["completion_tokens"]),
        other.key_id: (1, told[2]["prompt_tokens"], told[2]["completion_tokens"]),
    }
    whole = await sdk.admin.organization.usage.completions(start_time=start, bucket_width="1d")
    sums: Any = [result for bucket in whole.data for result in bucket.results]
    assert sum(one.num_model_requests for one in sums) == 3
    one_key = await sdk.admin.organization.usage.completions(start_time=start, api_key_ids=[other.key_id])
    of_one: Any = [result for bucket in one_key.data for result in bucket.results]
    assert sum(one.num_model_requests for one in of_one) == 1


async def test_usage_comes_in_pages(served: Served) -> None:
    start = int(time.time()) - 4 * 86_400
    path = f"/v1/organization/usage/completions?start_time={start}&limit=2"
    first = (await served.get(path, ADMIN_KEY)).json()
    assert (len(first["data"]), first["has_more"]) == (2, True)
    second = (await served.get(f"{path}&page={first['next_page']}", ADMIN_KEY)).json()
    assert second["data"][0]["start_time"] == first["data"][1]["end_time"]
    third = (await served.get(f"{path}&page={second['next_page']}", ADMIN_KEY)).json()
    assert third["has_more"] is False


async def test_the_audit_tells_who_did_what(served: Served, sdk: openai.AsyncOpenAI) -> None:
    one = await sdk.admin.organization.projects.create(name="one")
    second = await sdk.admin.organization.admin_api_keys.create(name="second")
    await served.client.post(PROJECTS, json={"name": "two"}, headers=bearer(second.value))
    logs = [line async for line in sdk.admin.organization.audit_logs.list(limit=1)]
    assert [line.type for line in logs] == ["project.created", "api_key.created", "project.created"]
    assert logs[0].actor is not None
    assert logs[0].actor.api_key is not None
    assert logs[0].actor.api_key.id == second.id
    only = [line async for line in sdk.admin.organization.audit_logs.list(project_ids=[one.id])]
    assert len(only) == 1
    kinds = [line async for line in sdk.admin.organization.audit_logs.list(event_types=["api_key.created"])]
    assert [line.type for line in kinds] == ["api_key.created"]
    none = [line async for line in sdk.admin.organization.audit_logs.list(effective_at={"lt": 1000})]
    assert none == []
    assert second.value not in str(await served.tenants.store.audit())


async def test_limits_are_changed_one_by_one_and_taken_away_by_null(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=5))
    path = f"{LIMITS}/{await served.tenant_of(key)}"
    body = {"kv_kib_seconds": 1000, "kv_window": "week@Europe/Paris", "weight": 2}
    answer = await send(served, path, body)
    limits = answer.json()["limits"]
    assert (limits["requests_per_minute"], limits["kv_kib_seconds"], limits["weight"]) == (5, 1000, 2)
    assert answer.json()["usage"]["remaining_kib_seconds"] == 1000
    limits = (await send(served, path, {"kv_kib_seconds": None, "requests_per_minute": None})).json()["limits"]
    assert (limits["requests_per_minute"], limits["kv_kib_seconds"], limits["weight"]) == (None, None, 2)
    assert (await served.get(LIMITS, ADMIN_KEY)).json()["data"][0]["limits"] == limits


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"kv_kib_seconds": -1}, "kv_kib_seconds"),
        ({"kv_kib_seconds": 0}, "kv_kib_seconds"),
        ({"kv_kib_seconds": 2**63}, "kv_kib_seconds"),
        ({"requests_per_minute": 10**12}, "requests_per_minute"),
        ({"tokens_per_minute": 1.5}, "tokens_per_minute"),
        ({"concurrency": "many"}, "concurrency"),
        ({"kv_window": "fortnight"}, "kv_window"),
        ({"kv_window": "day@Mars/Olympus"}, "kv_window"),
        ({"kv_soft_percent": 101}, "kv_soft_percent"),
        ({"state": "asleep"}, "state"),
        ({"state": "archived"}, "state"),
        ({"weight": 0}, "weight"),
        ({"request_per_minute": 5}, "request_per_minute"),
        ({"request_per_minute": None}, "request_per_minute"),
    ],
)
async def test_absurd_limits_are_refused_with_the_fields_name(served: Served, body: Any, param: str) -> None:
    project = (await served.directory.create_tenant(BY, "acme")).id
    answer = await send(served, f"{LIMITS}/{project}", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await served.directory.tenant(project)).limits == TenantLimits()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PROJECTS, {"name": ""}, "name"),
        (PROJECTS, {}, "name"),
        (PROJECTS, {"name": "a", "geography": "eu"}, "geography"),
        (PROJECTS, {"name": "a", "titel": None}, "titel"),
        (PROJECTS + "/PROJECT", {"name": "a", "state": "archived"}, "state"),
        (PROJECTS + "/PROJECT/service_accounts", {"name": "ci", "expires_in_second": 60}, "expires_in_second"),
        ("/v1/organization/admin_api_keys", {"name": "a", "expires_in_second": 60}, "expires_in_second"),
        ("/v1/admin/projects/PROJECT/api_keys", {"name": "k", "scopes": ["everything"]}, "scopes"),
        ("/v1/admin/projects/PROJECT/api_keys", {"name": "k", "expires_in_seconds": -5}, "expires_in_seconds"),
        ("/v1/admin/projects/PROJECT/api_keys", {"name": "k", "requests_per_minute": 0}, "requests_per_minute"),
        ("/v1/admin/kv_limits/PROJECT/adjust", {"kib_seconds": 5}, "reason"),
        ("/v1/admin/import", {"object": "wye.tenants", "version": 2}, "version"),
        ("/v1/admin/import", {"object": "wye.tenants", "version": 1, "more": 1}, "more"),
        ("/v1/admin/projects/PROJECT/api_keys", {"name": "k", "scope": ["inference"]}, "scope"),
        ("/v1/admin/kv_limits/PROJECT/adjust", {"kib_seconds": 5, "reason": "r", "kib": 1}, "kib"),
        (PROJECTS + "/PROJECT/rate_limits/rl-all", {"max_request_per_1_minute": 5}, "max_request_per_1_minute"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_fields_name(served: Served, path: str, body: Any, param: str) -> None:
    project = (await served.directory.create_tenant(BY, "acme")).id
    answer = await send(served, path.replace("PROJECT", project), body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_fields_of_openais_sdk_that_ask_for_nothing_pass(served: Served, sdk: openai.AsyncOpenAI) -> None:
    projects = sdk.admin.organization.projects
    made = await projects.create(name="a", geography=None, residency=None, external_key_id=None)
    await projects.update(made.id, name="b", geography=None, external_key_id=None)
    accounts = projects.service_accounts
    await accounts.create(made.id, name="ci", create_service_account_only=False, expires_in_seconds=None)
    limits = {"max_requests_per_1_minute": 5, "max_requests_per_1_day": None}
    assert (await send(served, f"{PROJECTS}/{made.id}/rate_limits/rl-all", limits)).status_code == 200
    refused = await send(
        served, f"{PROJECTS}/{made.id}/service_accounts", {"name": "x", "create_service_account_only": 1}
    )
    assert refused.json()["error"]["param"] == "create_service_account_only"


@pytest.mark.parametrize(
    "path",
    [
        f"{PROJECTS}/proj_nobody",
        f"{PROJECTS}/..%2F..%2Fkey_1",
        f"{PROJECTS}/proj_nobody/api_keys",
        f"{PROJECTS}/PROJECT/api_keys/key_none",
        f"{PROJECTS}/PROJECT/service_accounts/none",
        f"{LIMITS}/proj_nobody",
        "/v1/organization/admin_api_keys/key_none",
    ],
)
async def test_what_is_not_there_is_a_404(served: Served, path: str) -> None:
    project = (await served.directory.create_tenant(BY, "acme")).id
    answer = await served.get(path.replace("PROJECT", project), ADMIN_KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_key_of_another_tenant_is_not_there(served: Served) -> None:
    key = await served.key()
    other = (await served.directory.create_tenant(BY, "other")).id
    path = f"{PROJECTS}/{other}/api_keys/{key.key_id}"
    assert (await served.get(path, ADMIN_KEY)).status_code == 404
    assert (await served.client.delete(path, headers=ADMIN)).status_code == 404
    assert (await served.chat(key.value)).status_code == 200


async def test_keys_are_made_narrow_and_rotated_over_http(served: Served) -> None:
    project = (await served.directory.create_tenant(BY, "acme")).id
    path = f"/v1/admin/projects/{project}/api_keys"
    made = (await send(served, path, {"name": "k", "scopes": ["inference"], "requests_per_minute": 7})).json()
    assert (made["scopes"], made["limits"]["requests_per_minute"]) == (["inference"], 7)
    assert (await served.chat(made["value"])).headers["x-ratelimit-limit-requests"] == "7"
    new = (await send(served, f"{path}/{made['id']}/rotate", {"overlap_seconds": 60})).json()
    assert new["overlap_until"] == pytest.approx(time.time() + 60, abs=10)
    assert [(await served.chat(one["value"])).status_code for one in (made, new)] == [200, 200]
    old = f"{PROJECTS}/{project}/api_keys/{made['id']}"
    changed = (await send(served, old, {"disabled": True, "requests_per_minute": None})).json()
    assert (changed["owner_project_access"], changed["limits"]["requests_per_minute"]) == ("inactive", None)
    assert (await served.chat(new["value"])).status_code == 401


async def test_usage_is_corrected_with_a_reason_in_the_audit(served: Served) -> None:
    project = (await served.directory.create_tenant(BY, "acme")).id
    body = {"kib_seconds": 50, "reason": "a refund", "operation": "op-1"}
    for _ in range(2):
        answer = await send(served, f"{LIMITS}/{project}/adjust", body)
        assert answer.json()["usage"]["used_kib_seconds"] == 50
    (line,) = [one for _, one in await served.tenants.store.audit() if one["type"] == "quota.adjusted"]
    assert line["details"] == {"kib_seconds": 50, "reason": "a refund"}
    (entry,) = (await served.get("/v1/admin/ledger", ADMIN_KEY)).json()["data"]
    assert (entry["kind"], entry["project_id"], entry["details"]["kib_s"]) == ("adjusted", project, "50")


async def test_a_caller_reads_its_own_limits(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=5, kv_kib_seconds=100))
    answer = (await served.get("/v1/quota", key.value)).json()
    assert answer["project_id"] == await served.tenant_of(key)
    assert (answer["limits"]["requests_per_minute"], answer["usage"]["remaining_kib_seconds"]) == (5, 100)
    assert answer["api_key"]["id"] == key.key_id
    assert key.value not in str(answer)


async def test_refusals_are_told_to_administrators(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=1))
    for _ in range(3):
        await served.chat(key.value)
    answer = await served.get(f"/v1/admin/denials?project_id={await served.tenant_of(key)}", ADMIN_KEY)
    found = answer.json()["data"]
    assert [(one["reason"], one["limit_source"], one["api_key_id"]) for one in found] == [
        ("requests", "tenant", key.key_id)
    ] * 2


async def test_the_whole_configuration_goes_out_and_comes_in_elsewhere(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=5, kv_kib_seconds=100, kv_window="day@Asia/Tokyo"))
    disabled = await served.key(name="other")
    await served.directory.change_key(BY, await served.tenant_of(disabled), disabled.key_id, is_disabled=True)
    await served.directory.create_key(BY, "", "admin two")
    file = (await served.get("/v1/admin/export", ADMIN_KEY)).json()
    secret = key.value.split("-", 3)[3]
    assert secret not in str(file)
    same = (await send(served, "/v1/admin/import", file)).json()
    assert (same["created"], same["updated"], len(same["unchanged"])) == ([], [], 5)
    await served.tenants.redis.flushall()
    assert (await served.chat(key.value)).status_code == 401
    dry = (await send(served, "/v1/admin/import?dry_run=true", file)).json()
    assert (len(dry["created"]), dry["dry_run"]) == (5, True)
    assert (await served.chat(key.value)).status_code == 401
    assert len((await send(served, "/v1/admin/import", file)).json()["created"]) == 5
    assert (await served.chat(key.value)).headers["x-ratelimit-limit-requests"] == "5"
    assert (await served.chat(disabled.value)).json()["error"]["code"] == "api_key_disabled"
    assert (await served.get("/v1/admin/export", ADMIN_KEY)).json() == file


async def test_a_file_that_is_wrong_somewhere_changes_nothing(served: Served) -> None:
    key, other = await served.key(), await served.key(name="other")
    file = (await served.get("/v1/admin/export", ADMIN_KEY)).json()
    one, two = sorted(file["tenants"], key=lambda tenant: tenant["name"] != "acme")
    bad_window = {**file, "tenants": [{**one, "name": "new"}, {**two, "limits": {"kv_window": "x"}}]}
    answer = await send(served, "/v1/admin/import", bad_window)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenants[1].limits.kv_window")
    twice = {**file, "tenants": [one, one]}
    answer = await send(served, "/v1/admin/import", twice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenants[1].id")
    unnamed = {**file, "tenants": [one, {**two, "keys": [{**two["keys"][0], "name": "\n"}]}]}
    answer = await send(served, "/v1/admin/import", unnamed)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenants[1].keys[0].name")
    unknown = {**file, "tenants": [one, {**two, "keys": [{**two["keys"][0], "scopes": "all"}]}]}
    answer = await send(served, "/v1/admin/import", unknown)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenants[1].keys[0].scopes")
    stolen = {**file, "tenants": [{**one, "keys": [*one["keys"], *two["keys"]]}]}
    answer = await send(served, "/v1/admin/import", stolen)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (409, "conflict", "tenants[0].keys[1].id")
    assert (await served.get("/v1/admin/export", ADMIN_KEY)).json() == file
    assert (await served.chat(key.value)).status_code == (await served.chat(other.value)).status_code == 200
    await served.directory.change_tenant(BY, await served.tenant_of(other), state="archived")
    answer = await send(served, "/v1/admin/import", file)
    assert (answer.status_code, "archived" in answer.json()["error"]["message"]) == (409, True)


async def test_administration_needs_the_administrators_key(served: Served) -> None:
    assert (await served.client.get(PROJECTS)).status_code == 401
    key = await served.key()
    for path in (PROJECTS, LIMITS, "/v1/admin/export"):
        assert (await served.get(path, key.value)).status_code == 403


async def test_two_administrators_do_not_overwrite_each_other(served: Served) -> None:
    project = await served.directory.create_tenant(BY, "acme")
    await served.directory.change_tenant(BY, project.id, name="first")
    with pytest.raises(Exception, match="changed meanwhile"):
        await served.directory.change_tenant(BY, project.id, name="second", version=project.version)
    assert (await served.directory.tenant(project.id)).name == "first"
