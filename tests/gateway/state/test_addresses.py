"""Where a Redis can be: one server, Sentinels, a cluster; and whether it is one that can be used."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.settings import Settings
from gateway.state.address import parse_address
from gateway.state.embedded import find_server
from gateway.state.link import connect, connect_listener
from gateway.state.probe import UnfitStore, check_store, probe
from gateway.state.quotas import QuotaStore, Report
from gateway.state.store import Bounds, ResponseStore
from gateway.state.tenancy import TenancyStore


def test_sentinels_are_read_with_all_that_belongs_to_them() -> None:
    found = parse_address("rediss+sentinel://ann:p%40ss@one,two:26380/main/3?sentinel_password=s&ssl_ca_certs=/ca.pem")
    assert (found.kind, found.hosts, found.service, found.db) == (
        "sentinel",
        (("one", 26379), ("two", 26380)),
        "main",
        3,
    )
    assert (found.username, found.password, found.is_tls) == ("ann", "p@ss", True)
    assert found.options == {"sentinel_password": "s", "ssl_ca_certs": "/ca.pem"}
    assert "p@ss" not in repr(found)


def test_clusters_are_read() -> None:
    found = parse_address("redis+cluster://:secret@one:7000,[::1]:7001,three")
    assert found.hosts == (("one", 7000), ("::1", 7001), ("three", 6379))
    assert (found.username, found.password, found.is_tls) == (None, "secret", False)


@pytest.mark.parametrize(
    "url",
    [
        "http://one",
        "redis://",
        "redis+sentinel://one,two",
        "redis+sentinel://one/main/x",
        "redis+sentinel://one/main/1/2",
        "redis+sentinel://one:port/main",
        "redis+sentinel:///main",
        "redis+cluster://one/1",
        "redis+cluster://one,,two",
        "redis+cluster://one?colour=red",
        "redis+magic://one",
    ],
)
def test_an_address_that_cannot_be_read_stops_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url"):
        Settings(redis_url=url)


def test_no_password_is_in_a_message() -> None:
    with pytest.raises(ValueError, match="database") as failed:
        parse_address("redis+cluster://ann:secret@one/1")
    assert "secret" not in str(failed.value)


async def command(redis: Redis, *parts: Any) -> Any:
    """A command that the library has no method for."""
    return await redis.execute_command(*parts)  # type: ignore[no-untyped-call]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Servers:
    """redis-servers of a test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, port: int, *options: str, sentinel: str = "") -> None:
        """Runs one on a port and waits until it listens."""
        place = self._directory / str(port)
        place.mkdir()
        arguments: Sequence[str] = ["--port", str(port), "--save", "", "--dir", str(place), *options]
        if sentinel:
            (place / "sentinel.conf").write_text(f"port {port}\ndir {place}\n{sentinel}\n")
            arguments = [str(place / "sentinel.conf"), "--sentinel"]
        log = (place / "log").open("wb")
        self._children.append(subprocess.Popen([str(find_server()), *arguments], stdout=log, stderr=log))
        deadline_s = time.monotonic() + 60
        while not _listens(port):
            assert time.monotonic() < deadline_s, (place / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends all of them."""
        for child in self._children:
            child.kill()
            child.wait()


def _listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    servers.stop()


@pytest.fixture
async def cluster_url(servers: Servers) -> str:
    """A cluster of one node that holds all slots."""
    port = free_port()
    while port > 55_000:  # a cluster's own port is 10,000 higher
        port = free_port()
    servers.start(port, "--cluster-enabled", "yes")
    async with Redis(port=port) as node:
        await command(node, "CLUSTER", "ADDSLOTS", *range(16384))
        async with asyncio.timeout(60):
            while b"cluster_state:ok" not in await command(node, "CLUSTER", "INFO"):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.05)
    return f"redis+cluster://127.0.0.1:{port}"


@pytest.fixture
async def sentinel_url(servers: Servers) -> str:
    """A server that a Sentinel watches."""
    port, watch = free_port(), free_port()
    servers.start(port)
    servers.start(watch, sentinel=f"sentinel monitor main 127.0.0.1 {port} 1")
    return f"redis+sentinel://127.0.0.1:{watch}/main"


@pytest.fixture(params=["cluster", "sentinel"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


async def test_everything_is_kept_in_a_cluster_and_behind_sentinels(url: str) -> None:
    store = ResponseStore(url, Bounds(count=10, bytes=10**6, ttl_s=60))
    await store.put("r1", {"owner": "ann", "kind": "response", "body": {"a": 1}})
    assert await store.read("r1", "ann", "response", "body") == {"body": {"a": 1}}
    await store.beat(["r1"])
    assert await store.is_alive("r1")
    await store.aclose()
    redis = connect(url)
    tenants, quotas = TenancyStore(redis), QuotaStore(redis)
    fields = {"name": "a", "state": "active", "created": "1", "kv": "100"}
    assert await tenants.write_tenant("create", "proj_a", fields, {"at": 1}) == 1
    (settled,) = await quotas.report("e", 1, [Report("proj_a", 5000, 1, 10)], lease_ms=1000, seed_kib_ms=0)
    assert settled.ceiling_kib_ms == 5010
    assert [one for one, _ in await tenants.tenants()] == ["proj_a"]
    assert len(await tenants.usage("proj_a", ["20200101", "20200102"])) == 2
    assert await probe(redis, keeps_accounts=False) == []
    await redis.aclose()


async def test_what_is_published_is_heard(url: str) -> None:
    redis, listener = connect(url), connect_listener(url)
    pubsub = listener.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("{wye}:test")
    heard = None
    async with asyncio.timeout(60):
        while heard is None:
            await command(redis, "PUBLISH", "{wye}:test", "x")
            heard = await pubsub.get_message(timeout=0.2)
    assert heard["data"] == b"x"
    await pubsub.aclose()  # type: ignore[no-untyped-call]
    await listener.aclose()
    await redis.aclose()


async def test_a_redis_that_drops_keys_keeps_no_quotas(servers: Servers) -> None:
    port = free_port()
    servers.start(port, "--maxmemory", "10mb", "--maxmemory-policy", "allkeys-lru")
    redis = connect(f"redis://127.0.0.1:{port}")
    (warning,) = await probe(redis, keeps_accounts=False)
    assert "allkeys-lru" in warning
    with pytest.raises(UnfitStore, match="quotas would be lost"):
        await probe(redis, keeps_accounts=True)
    await redis.aclose()


async def test_a_user_needs_the_right_to_run_scripts(servers: Servers) -> None:
    port = free_port()
    servers.start(port)
    async with Redis(port=port) as admin:
        await command(admin, "ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha")
        await command(admin, "ACL", "SETUSER", "bob", "on", ">pw", "~{wye}:*", "&*", "+@all", "-info")
    with pytest.raises(UnfitStore, match="scripts"):
        await asyncio.to_thread(check_store, f"redis://ann:pw@127.0.0.1:{port}", keeps_accounts=False)
    with pytest.raises(UnfitStore, match="user or password"):
        await asyncio.to_thread(check_store, f"redis://bob:wrong@127.0.0.1:{port}", keeps_accounts=False)
    found = await asyncio.to_thread(check_store, f"redis://bob:pw@127.0.0.1:{port}", keeps_accounts=True)
    assert found == ["the Redis of WYE_REDIS_URL does not say its version and policy (INFO is not allowed)"]


def test_a_redis_that_is_not_there_yet_is_no_reason_not_to_start() -> None:
    (warning,) = check_store("redis://127.0.0.1:1", keeps_accounts=True)
    assert "does not answer yet" in warning


async def test_a_redis_without_a_file_is_said_to_lose_charges(servers: Servers) -> None:
    port = free_port()
    servers.start(port)
    redis = connect(f"redis://127.0.0.1:{port}")
    (warning,) = await probe(redis, keeps_accounts=True)
    assert "append-only" in warning
    await redis.aclose()
