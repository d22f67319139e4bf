"""What a narrow key may not do itself it does not get done by other means, and nothing of that is free."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from gateway.batches.calls import LocalCalls
from gateway.caller import Caller
from gateway.tenancy.keys import NewKey
from gateway.tenancy.limits import TenantLimits
from tests.fakes import MODEL
from tests.gateway.tenancy.conftest import ADMIN_KEY, BY, OPERATOR_KEY, Served, bearer

SOURCE = """async def main(request, lm):
    return 1
"""
TOOL = {
    "name": "one",
    "kind": "script",
    "effect": "pure",
    "parameters": {"type": "object", "properties": {}},
    "script": {"source": SOURCE},
}


async def _post(served: Served, path: str, key: NewKey, body: object) -> httpx.Response:
    return await served.client.post(path, json=body, headers=bearer(key.value))


async def test_a_key_for_files_alone_has_no_batch_ask_the_model(served: Served) -> None:
    key = await served.key(scopes=("files",))
    body = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": "file-1"}
    answer = await _post(served, "/v1/batches", key, body)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "missing_scope"


@pytest.mark.parametrize(
    ("scopes", "fields", "status"),
    [
        ("files inference", {}, 200),
        ("files", {}, 403),
        ("files inference", {"extension": {"source": SOURCE}}, 403),
    ],
)
async def test_lines_of_a_batch_may_do_what_the_key_may_that_made_it(
    served: Served, scopes: str, fields: dict[str, object], status: int
) -> None:
    tenant = await served.tenant_of(await served.key())
    body = json.dumps({"prompt": "Hi", **fields}).encode()
    caller = Caller(tenant, 0, scopes)
    answer = await LocalCalls(served.app).post("/v1/completions", body, caller, asyncio.Event())
    assert answer.status == status


async def test_trying_out_a_tool_counts_as_a_request(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=1), scopes=("tools", "programs"))
    assert (await _post(served, "/v1/tools", key, TOOL)).status_code == 200
    answers = [await _post(served, "/v1/tools/one/test", key, {"arguments": {}}) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]


async def test_a_key_that_may_register_tools_may_not_register_programs_as_such(served: Served) -> None:
    key = await served.key(scopes=("tools",))
    answer = await _post(served, "/v1/tools", key, TOOL)
    assert answer.status_code == 403
    assert "programs" in answer.json()["error"]["message"]


async def test_a_blank_scope_in_a_file_is_refused(served: Served) -> None:
    key = await served.key(scopes=("models",))
    file = (await served.get("/v1/admin/export", ADMIN_KEY)).json()
    file["tenants"][0]["keys"][0]["scopes"] = " "
    answer = await served.client.post("/v1/admin/import", json=file, headers=bearer(ADMIN_KEY))
    assert answer.status_code == 400
    assert (await served.chat(key.value)).status_code == 403


async def test_what_a_tool_generates_is_counted(served: Served) -> None:
    key = await served.key()
    source = """async def main(request, lm):
    return (await (await lm.context("Hi")).generate(max_tokens=4)).text
"""
    await _post(served, "/v1/tools", key, {**TOOL, "script": {"source": source}})
    answer = await _post(served, "/v1/tools/one/test", key, {"arguments": {}})
    assert answer.status_code == 200, answer.text
    await served.tenants.gate.settled()
    tenant = await served.tenant_of(key)
    assert served.engine.requests[0].salt == tenant
    used = await served.get(f"/v1/organization/usage/completions?start_time={int(time.time())}", ADMIN_KEY)
    results = used.json()["data"][0]["results"]
    assert results[0]["input_tokens"] > 0
    assert results[0]["output_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "server_tools": ["one"]}),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "mcp", "server_label": "wye"}]}),
    ],
)
async def test_a_key_that_may_chat_may_not_have_tools_called(
    served: Served, path: str, body: dict[str, object]
) -> None:
    key = await served.key(scopes=("inference",))
    answer = await _post(served, path, key, body)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "missing_scope"
    assert "tools" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("scopes", "told"), [(("programs", "inference"), "lacks the scope 'tools'"), ((), "1")])
async def test_a_program_of_a_key_without_the_scope_has_no_tools_called(
    served: Served, scopes: tuple[str, ...], told: str
) -> None:
    first = await served.key()
    assert (await _post(served, "/v1/tools", first, TOOL)).status_code == 200
    path = f"/v1/organization/projects/{await served.tenant_of(first)}/service_accounts"
    account = (await served.client.post(path, json={"name": "ci"}, headers=bearer(ADMIN_KEY))).json()["id"]
    wanted = {"name": "second", "scopes": list(scopes)} if scopes else {"name": "second"}
    made = await served.client.post(f"{path}/{account}/api_keys", json=wanted, headers=bearer(ADMIN_KEY))
    key = bearer(made.json()["value"])
    source = """async def main(request, lm):
    try:
        return str(await lm.tool("one"))
    except PermissionError as error:
        return str(error)
"""
    body = {"messages": [{"role": "user", "content": "Hi"}], "extension": {"source": source}}
    answer = await served.client.post("/v1/chat/completions", json=body, headers=key)
    assert answer.status_code == 200, answer.text
    assert told in answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("scopes", "told"),
    [
        (("programs", "inference"), "capability_denied: the API key lacks the scope 'prefixes'"),
        (("programs", "inference", "prefixes"), "pfx_"),
        ((), "pfx_"),
    ],
)
async def test_a_program_of_a_key_without_the_scope_makes_no_prefix(
    served: Served, scopes: tuple[str, ...], told: str
) -> None:
    key = await served.key(scopes=scopes)
    source = """async def main(request, lm):
    ctx = await lm.context(request.messages)
    try:
        return await ctx.export("mine")
    except PermissionError as error:
        return str(error)
"""
    answer = await served.chat(key.value, extension={"source": source})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].startswith(told)
    listed = await served.get("/v1/prefixes", (await _sibling(served, key)))
    assert len(listed.json()["data"]) == (told == "pfx_")


async def _sibling(served: Served, key: NewKey) -> str:
    """A key of the same tenant that may do everything."""
    _, made = await served.directory.create_key(BY, await served.tenant_of(key), "all")
    return made.value


@pytest.mark.parametrize("path", ["/v1/tools", "/v1/files", "/v1/tools/a/b/test"])
async def test_what_calls_nothing_is_not_counted(served: Served, path: str) -> None:
    key = await served.key(TenantLimits(requests_per_minute=1))
    answers = [await _post(served, path, key, {}) for _ in range(2)]
    assert 429 not in [one.status_code for one in answers]


async def test_another_key_of_a_service_account_has_its_limits(served: Served) -> None:
    tenant = await served.tenant_of(await served.key())
    path = f"/v1/organization/projects/{tenant}/service_accounts"
    admin = bearer(ADMIN_KEY)
    account = (await served.client.post(path, json={"name": "ci"}, headers=admin)).json()["id"]
    body = {"name": "second", "requests_per_minute": 1}
    key = (await served.client.post(f"{path}/{account}/api_keys", json=body, headers=admin)).json()["value"]
    answers = [await served.chat(key, model=MODEL) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]


@pytest.mark.parametrize(
    "query",
    [
        "organization/audit_logs?after=0-0",
        "organization/audit_logs?effective_at[gt]=²",
        f"organization/audit_logs?effective_at[gt]={'9' * 5000}",
        "admin/ledger?after=0-0",
    ],
)
async def test_a_cursor_or_a_time_that_is_none_is_told(served: Served, query: str) -> None:
    answer = await served.get(f"/v1/{query}", ADMIN_KEY)
    assert answer.status_code == 400


async def test_the_operators_key_is_told_where_a_tool_would_have_gone_and_a_tenants_is_not(served: Served) -> None:
    tool = {"name": "inside", "kind": "http", "http": {"url": "https://localhost/"}}
    told = []
    for key in (OPERATOR_KEY, (await served.key()).value):
        made = await served.client.post("/v1/tools", json=tool, headers=bearer(key))
        assert made.status_code == 200, made.text
        answer = await served.client.post("/v1/tools/inside/test", json={}, headers=bearer(key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "egress_denied")
        told.append(answer.json()["error"]["message"])
    assert "which is no public address" in told[0]
    assert told[1] == "localhost is at an address that is not allowed"


async def test_a_run_names_its_tenant_and_no_key_of_the_settings(served: Served) -> None:
    key = await served.key()
    tenants = []
    for value in (key.value, OPERATOR_KEY):
        made = await served.client.post("/v1/runs", json={"source": SOURCE}, headers=bearer(value))
        assert made.status_code == 200, made.text
        tenants.append(made.json()["tenant"])
    assert tenants == [await served.tenant_of(key), None]
