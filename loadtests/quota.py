"""What tenants cost: `python -m loadtests.quota`.

Runs a redis-server of its own, on a socket and with its append-only file, as `wye serve` does. Measures

- admission: the one round trip that a request of a tenant waits for, with every limit set, and its settlement;
- reports: the processor time of Redis for heartbeats of many engines with many tenants each, with and without quotas.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from gateway.state.embedded import EmbeddedRedis, find_server
from gateway.state.link import connect
from gateway.state.quotas import QuotaStore, Report
from gateway.state.tenancy import TenancyStore
from gateway.tenancy.directory import Directory
from gateway.tenancy.gate import Gate
from gateway.tenancy.keys import read_key
from gateway.tenancy.limits import KeyLimits, TenantLimits
from gateway.tenancy.principal import Principal
from loadtests.results import report
from loadtests.tables import Table

EVERY_LIMIT = TenantLimits(
    requests_per_minute=100_000_000, tokens_per_minute=100_000_000, concurrency=1_000_000, kv_kib_seconds=2**50
)
BY = Principal(owner="", is_admin=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """Seconds of each admission, and of each settlement with its admission."""

    admit_s: list[float]
    settle_s: list[float]
    ping_s: list[float]


async def measure_admission(url: str, count: int) -> Admission:
    """Admits and settles one request after the other, and pings in between for comparison."""
    redis = connect(url)
    directory, gate = Directory(TenancyStore(redis)), Gate(redis)
    tenant = await directory.create_tenant(BY, "load", EVERY_LIMIT)
    key_limits = KeyLimits(requests_per_minute=100_000_000, tokens_per_minute=100_000_000, concurrency=1_000_000)
    _, made = await directory.create_key(BY, tenant.id, "load", limits=key_limits)
    key = read_key(made.value)
    assert key is not None
    found = Admission(admit_s=[], settle_s=[], ping_s=[])
    for number in range(count + count // 10):
        times = [time.perf_counter()]
        await redis.ping()
        times.append(time.perf_counter())
        verdict, ticket = await gate.admit(key, "inference", 100)
        times.append(time.perf_counter())
        if ticket is None:
            raise RuntimeError(f"a request was refused: {verdict}")
        ticket.add("output", 100)
        ticket.leave()
        await gate.settled()
        times.append(time.perf_counter())
        if number >= count // 10:
            found.ping_s.append(times[1] - times[0])
            found.admit_s.append(times[2] - times[1])
            found.settle_s.append(times[3] - times[2])
    await gate.aclose()
    await redis.aclose()
    return found


async def measure_reports(url: str, process: psutil.Process, options: argparse.Namespace, *, is_limited: bool) -> float:
    """Processor seconds of Redis for one heartbeat of all engines."""
    redis = connect(url)
    quotas, directory = QuotaStore(redis), Directory(TenancyStore(redis))
    limits = EVERY_LIMIT if is_limited else TenantLimits()
    tenants = [(await directory.create_tenant(BY, "load", limits)).id for _ in range(options.tenants)]

    async def beat(number: int) -> None:
        for engine in range(options.engines):
            total = number * 10_000_000
            reports = [Report(tenant, total + place, 1000, 40_000_000) for place, tenant in enumerate(tenants)]
            await quotas.report(f"engine-{engine}", 1, reports, lease_ms=10_000, seed_kib_ms=1_000_000)

    await beat(1)
    before = process.cpu_times()
    for number in range(options.beats):
        await beat(number + 2)
    after = process.cpu_times()
    await redis.aclose()
    # Sums first: so that no time at all is no time, not a rounding error below it.
    spent_s: float = (after.user + after.system) - (before.user + before.system)
    return spent_s / float(options.beats)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.quota", description="Measure what tenants cost.")
    parser.add_argument("--requests", type=int, default=3000, help="admissions to measure")
    parser.add_argument("--engines", type=int, default=100, help="engines that report")
    parser.add_argument("--tenants", type=int, default=20, help="tenants of each engine")
    parser.add_argument("--beats", type=int, default=10, help="heartbeats to measure")
    parser.add_argument("--redis-server", default="", help="program to run; the first that is found if left out")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="wye-quota-") as directory:
        server = EmbeddedRedis(Path(directory), find_server(options.redis_server))
        server.start()
        try:
            process = next(one for one in psutil.Process().children() if "server" in one.name())
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                admission = runner.run(measure_admission(server.url, options.requests))
                plain_s = runner.run(measure_reports(server.url, process, options, is_limited=False))
                limited_s = runner.run(measure_reports(server.url, process, options, is_limited=True))
        finally:
            server.stop()
    rows = {"a ping": admission.ping_s, "admission": admission.admit_s, "settlement": admission.settle_s}
    table = Table(title="A request of a tenant", headers=["ms", "p50", "p99"])
    for name, times in rows.items():
        cuts = statistics.quantiles(times, n=100)
        table.add(name, cuts[49] * 1000, cuts[98] * 1000)
        results[name] = {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}
    beats = Table(
        title=f"Heartbeats of {options.engines} engines with {options.tenants} tenants each, once a second",
        headers=["", "% of one core of Redis"],
    )
    beats.add("without quotas", plain_s * 100)
    beats.add("with quotas", limited_s * 100)
    results |= {"core_share": plain_s, "core_share_with_quotas": limited_s}
    report([table, beats], results, json_path=options.json, markdown=options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
