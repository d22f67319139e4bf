"""Heartbeats between engine and accounts: charges one way, ceilings and shares the other."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pytest

from engine.kv.commands import SetCeilings, SetShares
from engine.request import EngineInfo
from engine.stats import AccountCharge
from gateway.errors import QuotaStoreUnavailable
from gateway.state.link import connect
from gateway.state.quotas import QuotaStore
from gateway.state.tenancy import PREFIX, TenancyStore
from gateway.tenancy.limits import TenantLimits
from gateway.tenancy.settling import SHARES_EVERY, Settler
from tests.fakes import ScriptedEngine
from tests.gateway.tenancy.conftest import BY, Served


class Meter:
    """An engine's door, as settling sees it."""

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self.is_ready = True
        self.told: list[SetCeilings | SetShares] = []
        self._charges: dict[str, AccountCharge] = {}

    @property
    def charges(self) -> Mapping[str, AccountCharge]:
        return self._charges

    def count(self, account: str, total_kib_ms: int, level_kib: int = 0) -> None:
        """Has an account come to something."""
        self._charges[account] = AccountCharge(account, total_kib_ms, level_kib)

    def tell(self, command: SetCeilings | SetShares) -> None:
        self.told.append(command)

    def ceiling(self, account: str) -> int | None:
        """What the account may be charged, as far as was told."""
        found = None
        for command in self.told:
            if isinstance(command, SetCeilings):
                found = command.ceilings.get(account, found)
        return found


@pytest.fixture
def meter(engine: ScriptedEngine) -> Meter:
    """An engine with a pool of some MiB."""
    return Meter(engine.info)


@pytest.fixture
def settler(served: Served, meter: Meter) -> Settler:
    """Settles for it."""
    return Settler(meter, served.tenants.quotas, served.tenants.store, "here")


async def tenant(served: Served, limits: TenantLimits | None = None) -> str:
    """A new tenant's id."""
    return (await served.directory.create_tenant(BY, "acme", limits)).id


async def test_what_the_engine_counts_is_charged(served: Served, meter: Meter, settler: Settler) -> None:
    one = await tenant(served)
    meter.count(one, 12_345, 10)
    meter.count("", 99_999)
    meter.count("0123abcd", 99_999)
    assert await settler.beat()
    assert await settler.beat()
    account = await served.tenants.store.account(one)
    assert (account["used_s"], account["used_r"], account["level"]) == ("12", "345", "10")
    assert meter.ceiling(one) is None
    assert not await served.tenants.redis.exists(f"{PREFIX}acct:", f"{PREFIX}acct:0123abcd")


async def test_a_tenant_with_a_quota_may_begin_before_it_was_ever_charged(
    served: Served, meter: Meter, settler: Settler
) -> None:
    one = await tenant(served, TenantLimits(kv_kib_seconds=1000))
    await settler.beat()
    assert meter.ceiling(one) == 500_000


async def test_the_ceiling_rises_with_what_is_spent_and_stops_at_the_quota(
    served: Served, meter: Meter, settler: Settler
) -> None:
    one = await tenant(served, TenantLimits(kv_kib_seconds=1000))
    spent = 0
    for _ in range(12):
        await settler.beat()
        ceiling = meter.ceiling(one)
        assert ceiling is not None
        assert spent <= ceiling <= 1_000_000
        spent = ceiling
        meter.count(one, spent, 100)
    account = await served.tenants.store.account(one)
    assert int(account["used_s"]) == 1000


async def test_a_quota_that_is_lifted_takes_the_ceiling_away(served: Served, meter: Meter, settler: Settler) -> None:
    one = await tenant(served, TenantLimits(kv_kib_seconds=1000))
    await settler.beat()
    await served.directory.change_tenant(BY, one, limits=TenantLimits())
    await settler.beat()
    assert meter.ceiling(one) == -1
    assert int((await served.tenants.store.account(one))["held"]) == 0


async def test_a_suspended_tenant_spends_nothing_more(served: Served, meter: Meter, settler: Settler) -> None:
    one = await tenant(served)
    meter.count(one, 1000, 10)
    await settler.beat()
    await served.directory.change_tenant(BY, one, state="suspended")
    await settler.beat()
    assert meter.ceiling(one) == 0
    await served.directory.change_tenant(BY, one, state="active")
    await settler.beat()
    assert meter.ceiling(one) == -1


async def test_the_engine_hears_how_much_tenants_may_hold_at_once(
    served: Served, meter: Meter, settler: Settler
) -> None:
    one = await tenant(served, TenantLimits(resident_kib=700))
    await settler.beat()
    assert SetCeilings({}, {one: 700}) in meter.told
    await served.directory.change_tenant(BY, one, state="shadow")
    for _ in range(SHARES_EVERY):
        await settler.beat()
    assert meter.told[-1] == SetCeilings({}, {one: -1})
    await served.directory.change_tenant(BY, one, state="active", limits=TenantLimits(resident_kib=900))
    meter.info = msgspec.structs.replace(meter.info, incarnation=meter.info.incarnation + 1)
    await settler.beat()
    assert SetCeilings({}, {one: 900}) in meter.told  # another engine is told at once


async def test_windows_are_told_to_the_store(served: Served, settler: Settler) -> None:
    one = await tenant(served, TenantLimits(kv_kib_seconds=1000, kv_window="hour@Europe/Paris"))
    await settler.beat()
    account = await served.tenants.store.account(one)
    ends_ms = int(account["win_end"])
    assert 0 < ends_ms - time.time() * 1000 <= 3_600_000
    assert len(account["ends"].split()) == 23
    await served.directory.change_tenant(BY, one, limits=TenantLimits(kv_kib_seconds=1000, kv_window="rolling:86400"))
    await settler.beat()
    account = await served.tenants.store.account(one)
    assert account["window"] == "rolling:86400"
    assert "ends" not in account


async def test_weights_are_told_when_they_change(served: Served, meter: Meter, settler: Settler) -> None:
    one = await tenant(served, TenantLimits(weight=3))
    await settler.beat()
    await settler.beat()
    assert [command for command in meter.told if isinstance(command, SetShares)] == [SetShares({one: 3.0})]


async def test_one_process_settles_and_another_takes_over(served: Served, meter: Meter, settler: Settler) -> None:
    other = Settler(meter, served.tenants.quotas, served.tenants.store, "here")
    assert await settler.beat()
    assert not await other.beat()
    (leader,) = await served.tenants.redis.keys(f"{PREFIX}leader:*")
    await served.tenants.redis.delete(leader)
    assert await other.beat()
    assert not await settler.beat()


async def test_without_an_engine_nothing_is_settled(meter: Meter, settler: Settler) -> None:
    meter.is_ready = False
    assert not await settler.beat()


async def test_a_redis_that_is_away_is_told_to_the_caller_and_no_ceiling_changes(meter: Meter) -> None:
    redis = connect("unix:///nowhere.sock")
    settler = Settler(meter, QuotaStore(redis), TenancyStore(redis), "here")
    with pytest.raises(QuotaStoreUnavailable):
        await settler.beat()
    assert meter.told == []
    await redis.aclose()


async def test_a_used_up_quota_refuses_new_requests_and_says_until_when(
    served: Served, meter: Meter, settler: Settler
) -> None:
    key = await served.key(TenantLimits(kv_kib_seconds=1000, kv_window="month@UTC"))
    one = await served.tenant_of(key)
    await settler.beat()
    answer = await served.chat(key.value)
    assert answer.headers["x-kv-quota-limit"] == "1000"
    assert answer.headers["x-kv-quota-used"] == "0"
    meter.count(one, 2_000_000, 0)
    await settler.beat()
    answer = await served.chat(key.value)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (429, "insufficient_quota", "kv_quota_exceeded")
    assert (error["limit"], error["used"], error["remaining"], error["unit"]) == (1000, 1000, 0, "kib_seconds")
    assert error["resets_at"].endswith("+00:00")
    assert answer.headers["x-kv-quota-remaining"] == "0"
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


async def test_what_running_work_holds_is_told_apart_from_what_is_used(
    served: Served, meter: Meter, settler: Settler
) -> None:
    key = await served.key(TenantLimits(kv_kib_seconds=1000))
    one = await served.tenant_of(key)
    meter.count(one, 100_000, 10_000)
    await settler.beat()
    answer = await served.chat(key.value)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["used"], error["held"]) == (429, "kv_quota_held", 100, 900)
    assert answer.headers["retry-after"] == "2"
    meter.count(one, 100_000, 0)
    await settler.beat()
    assert (await served.chat(key.value)).status_code == 200


async def test_a_tenant_that_holds_more_than_it_may_waits(served: Served, meter: Meter, settler: Settler) -> None:
    key = await served.key(TenantLimits(resident_kib=500))
    meter.count(await served.tenant_of(key), 1000, 600)
    await settler.beat()
    answer = await served.chat(key.value)
    assert (answer.status_code, answer.json()["error"]["limit_kind"]) == (429, "resident")


async def test_a_soft_limit_is_noted_once_in_a_window(served: Served, meter: Meter, settler: Settler) -> None:
    one = await tenant(served, TenantLimits(kv_kib_seconds=1000, kv_soft_percent=50))
    for total in (400_000, 600_000, 700_000):
        meter.count(one, total, 0)
        await settler.beat()
    noted = [entry for entry in await served.tenants.store.stream("ledger") if entry["kind"] == "soft_limit"]
    assert [(entry["tenant"], entry["used_s"]) for entry in noted] == [(one, "600")]


async def test_a_window_that_nobody_can_know_is_refused() -> None:
    for window in ("year@UTC", "month@Nowhere/At_All", "rolling:5", "rolling:x", "", "month@../../etc"):
        with pytest.raises(ValueError, match=r"kv_window"):
            TenantLimits(kv_window=window)
