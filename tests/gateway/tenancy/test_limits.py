"""Rates and concurrency: taken all or not at all, told in headers, refused with what to do about it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.state import admit_scripts
from gateway.tenancy import gate
from gateway.tenancy.keys import read_key
from gateway.tenancy.limits import KeyLimits, TenantLimits
from gateway.tenancy.verdicts import Verdict, duration
from tests.gateway.tenancy.conftest import BY, Served, bearer, until


async def test_answers_tell_the_limits_and_what_is_left(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=3, tokens_per_minute=6000))
    answer = await served.chat(key.value)
    assert answer.headers["x-ratelimit-limit-requests"] == "3"
    assert answer.headers["x-ratelimit-remaining-requests"] == "2"
    assert answer.headers["x-ratelimit-reset-requests"] == "20s"
    assert answer.headers["x-ratelimit-limit-tokens"] == "6000"
    assert 5900 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 6000
    assert "x-kv-quota-limit" not in answer.headers


async def test_streams_tell_them_too(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=3))
    answer = await served.chat(key.value, stream=True)
    assert answer.headers["x-ratelimit-remaining-requests"] == "2"


async def test_one_request_too_many_is_told_when_to_come_back(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=2))
    assert [(await served.chat(key.value)).status_code for _ in range(2)] == [200, 200]
    answer = await served.chat(key.value)
    error = answer.json()["error"]
    assert answer.status_code == 429
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    assert (error["limit_source"], error["limit_kind"], error["limit"], error["unit"]) == (
        "tenant",
        "requests",
        2,
        "requests",
    )
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert 29_000 < int(answer.headers["retry-after-ms"]) <= 30_000
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(served.engine.requests) == 2


async def test_the_tightest_of_tenant_and_key_is_told(served: Served) -> None:
    key = await served.key(
        TenantLimits(requests_per_minute=10), key_limits=KeyLimits(requests_per_minute=2, concurrency=5)
    )
    assert (await served.chat(key.value)).headers["x-ratelimit-limit-requests"] == "2"
    await served.chat(key.value)
    assert (await served.chat(key.value)).json()["error"]["limit_source"] == "key"


async def test_keys_of_one_tenant_share_its_limit(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=2))
    _, other = await served.directory.create_key(BY, await served.tenant_of(key), "other")
    assert (await served.chat(key.value)).status_code == 200
    assert (await served.chat(other.value)).status_code == 200
    assert (await served.chat(key.value)).status_code == 429


async def test_a_request_that_is_refused_takes_nothing(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=100, tokens_per_minute=10))
    await served.chat(key.value)
    before = await served.tenants.redis.get(f"{{wye}}:q:gcra:rt:{await served.tenant_of(key)}")
    for _ in range(5):
        assert (await served.chat(key.value)).status_code == 429
    assert await served.tenants.redis.get(f"{{wye}}:q:gcra:rt:{await served.tenant_of(key)}") == before


async def test_what_fails_after_it_was_admitted_counts_as_a_request_and_no_tokens(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=10, tokens_per_minute=1000))
    picture = {**bearer(key.value), "Content-Type": "image/png"}
    failing = [
        (await served.chat(key.value, temperature=9), 400),
        (await served.chat(key.value, model="absent"), 404),
        (await served.client.post("/v1/nothing", json={}, headers=bearer(key.value)), 404),
        (await served.client.post("/v1/completions", content=b"x", headers=picture), 415),
    ]
    for number, (answer, status) in enumerate(failing, 1):
        assert answer.status_code == status, answer.text
        assert answer.headers["x-ratelimit-limit-requests"] == "10"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(10 - number)
    assert (await served.get("/v1/models", key.value)).status_code == 200
    await served.tenants.gate.settled()
    last = await served.chat(key.value)
    assert last.headers["x-ratelimit-remaining-requests"] == "5"
    assert int(last.headers["x-ratelimit-remaining-tokens"]) > 950


async def test_what_a_key_may_not_do_counts_nothing(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=10), scopes=("models", "inference"))
    refused = await served.client.post("/v1/runs", json={}, headers=bearer(key.value))
    assert (refused.status_code, "x-ratelimit-limit-requests" in refused.headers) == (403, False)
    assert (await served.chat(key.value)).headers["x-ratelimit-remaining-requests"] == "9"


async def test_what_a_request_really_used_is_settled_at_its_end(served: Served) -> None:
    most, begun_s = 6_000, time.monotonic()
    key = await served.key(TenantLimits(tokens_per_minute=most))
    answer = await served.chat(key.value)
    used = answer.json()["usage"]["total_tokens"]
    await served.tenants.gate.settled()
    presented = read_key(key.value)
    assert presented is not None
    verdict, ticket = await served.tenants.gate.admit(presented, "inference", 1)
    assert ticket is not None
    ticket.leave()
    grown_back = most / 60 * (time.monotonic() - begun_s)
    assert most - used - 1 <= verdict.tokens.left <= most - used - 1 + grown_back + 1


async def test_a_request_larger_than_the_limit_waits_for_a_full_minute_and_then_goes(served: Served) -> None:
    key = await served.key(TenantLimits(tokens_per_minute=5))
    assert (await served.chat(key.value)).status_code == 200
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["limit_kind"]) == (429, "tokens")


async def test_no_more_run_at_once_than_may(served: Served) -> None:
    gone_on = asyncio.Event()
    served.engine.script = lambda request, index: [gone_on]
    key = await served.key(TenantLimits(concurrency=2))
    running = [asyncio.create_task(served.chat(key.value)) for _ in range(2)]

    async def both_run() -> bool:
        return len(served.engine.requests) == 2

    await until(both_run)
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["limit_kind"]) == (429, "concurrency")
    gone_on.set()
    assert {(await one).status_code for one in running} == {200}
    await served.tenants.gate.settled()
    assert (await served.chat(key.value)).status_code == 200


async def test_slots_come_back_after_a_storm_of_cancellations(served: Served) -> None:
    served.engine.script = lambda request, index: [asyncio.Event()]
    key = await served.key(TenantLimits(concurrency=1000))
    tenant = await served.tenant_of(key)
    running = [asyncio.create_task(served.chat(key.value)) for _ in range(40)]
    for number, one in enumerate(running):
        await asyncio.sleep(0.002 * (number % 3))
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    async with asyncio.timeout(60):
        await served.tenants.gate.settled()
    assert await served.tenants.store.num_running(tenant) == 0
    assert served.tenants.gate.num_open == 0


async def test_the_slot_of_a_process_that_died_is_free_after_its_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await served.key(TenantLimits(concurrency=1))
    presented = read_key(key.value)
    assert presented is not None
    monkeypatch.setattr(gate, "SLOT_S", 0.05)
    _, lost = await served.tenants.gate.admit(presented, "inference", 1)
    assert lost is not None

    async def goes_on() -> bool:
        return (await served.chat(key.value)).status_code == 200

    await until(goes_on)


async def test_the_slot_of_a_long_request_is_renewed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "RENEW_S", 0.01)
    key = await served.key(TenantLimits(concurrency=1))
    tenant = await served.tenant_of(key)
    presented = read_key(key.value)
    assert presented is not None
    _, ticket = await served.tenants.gate.admit(presented, "inference", 1)
    assert ticket is not None
    name = f"{{wye}}:q:slots:t:{tenant}"
    first = await served.tenants.redis.zscore(name, ticket.name)

    async def is_renewed() -> bool:
        return await served.tenants.redis.zscore(name, ticket.name) != first

    await until(is_renewed)
    ticket.leave()
    await served.tenants.gate.settled()
    assert await served.tenants.redis.zcard(name) == 0


async def test_a_background_response_keeps_its_slot_until_it_ends(served: Served) -> None:
    gone_on = asyncio.Event()
    served.engine.script = lambda request, index: [gone_on]
    key = await served.key(TenantLimits(concurrency=1))
    headers = {"Authorization": f"Bearer {key.value}"}
    body = {"input": "Hi", "background": True}
    answer = await served.client.post("/v1/responses", json=body, headers=headers)
    assert answer.status_code == 200
    assert (await served.chat(key.value)).status_code == 429
    gone_on.set()

    async def has_ended() -> bool:
        return served.tenants.gate.num_open == 0

    await until(has_ended)
    await served.tenants.gate.settled()
    assert (await served.chat(key.value)).status_code == 200


async def test_a_tenant_in_shadow_is_told_and_not_stopped(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=1))
    await served.directory.change_tenant(BY, await served.tenant_of(key), state="shadow")
    assert "x-quota-shadow" not in (await served.chat(key.value)).headers
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.headers["x-quota-shadow"]) == (200, "requests")
    denial = (await served.tenants.store.stream("denials"))[0]
    assert (denial["verdict"], denial["shadow"]) == ("requests", "1")


async def test_the_same_admission_twice_takes_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await served.key(TenantLimits(requests_per_minute=10, concurrency=5))
    presented = read_key(key.value)
    assert presented is not None

    monkeypatch.setattr(gate, "new_name", lambda: "the-same")
    left = [(await served.tenants.gate.admit(presented, "inference", 1))[0].requests.left for _ in range(3)]
    assert left == [9, 9, 9]
    assert await served.tenants.store.num_running(await served.tenant_of(key)) == 1


async def test_a_settlement_that_comes_twice_counts_once(served: Served) -> None:
    key = await served.key()
    tenant = await served.tenant_of(key)
    await served.chat(key.value)
    await served.tenants.gate.settled()
    before = await _usage(served, tenant)
    args = ["{wye}:q:", "a-name", tenant, key.key_id, "0", "7", "m|", "input", "7"]
    settle = served.tenants.redis.register_script(admit_scripts.SETTLE)
    assert [await settle(keys=["{wye}:q:done:a-name"], args=args) for _ in range(3)] == [1, 0, 0]
    after = await _usage(served, tenant)
    assert [int(value) for name, value in after.items() if name not in before] == [7]


async def _usage(served: Served, tenant: str) -> dict[str, str]:
    name: Any
    (name,) = await served.tenants.redis.keys(f"{{wye}}:q:use:{tenant}:*")
    found = await served.tenants.store.usage(tenant, [str(name, "ascii").rpartition(":")[2]])
    return next(iter(found.values()))


async def test_usage_is_kept_by_hour_key_model_and_program(served: Served) -> None:
    key = await served.key()
    answer = await served.chat(key.value)
    await served.tenants.gate.settled()
    fields = await _usage(served, await served.tenant_of(key))
    hour = {name.split("|")[0] for name in fields}
    assert len(hour) == 1
    told = {tuple(name.split("|")[1:]): int(value) for name, value in fields.items()}
    usage = answer.json()["usage"]
    model = answer.json()["model"]
    assert told[key.key_id, model, "", "input"] == usage["prompt_tokens"]
    assert told[key.key_id, model, "", "output"] == usage["completion_tokens"]
    assert told[key.key_id, model, "", "requests"] == 1


async def test_reading_takes_nothing(served: Served) -> None:
    key = await served.key(TenantLimits(requests_per_minute=1))
    for _ in range(3):
        assert (await served.get("/v1/models", key.value)).status_code == 200
    assert (await served.chat(key.value)).status_code == 200


def test_what_the_script_leaves_out_is_not_limited() -> None:
    assert Verdict.read([b"unknown", b""]) == Verdict("unknown")
    assert Verdict.read([b"ok", b"proj_1", b"*"]).requests.limit == -1


@pytest.mark.parametrize(
    ("ms", "text"),
    [(12, "12ms"), (1500, "1.5s"), (20_000, "20s"), (360_000, "6m0s"), (3_723_000, "1h2m3s"), (3_600_000, "1h0m0s")],
)
def test_durations_are_written_as_openai_does(ms: int, text: str) -> None:
    assert duration(ms) == text
