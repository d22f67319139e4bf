"""Redis behind TLS: a server that speaks it where there is one, and everywhere something that speaks it for a server.

The certificates were made for these tests, by an authority whose key is lost; they are for 127.0.0.1 and `localhost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from gateway.errors import StoreUnavailable
from gateway.state.embedded import EmbeddedRedis, find_server
from gateway.state.link import connect, connect_listener
from gateway.state.probe import probe
from gateway.state.store import Bounds, ResponseStore
from tests.gateway.state.test_addresses import Servers, command, free_port

CERTIFICATES = Path(__file__).parent / "certificates"
CA, SERVER, CLIENT = (CERTIFICATES / f"{name}.pem" for name in ("ca", "server", "client"))
TRUSTING = f"ssl_ca_certs={CA}"
KNOWN = f"{TRUSTING}&ssl_certfile={CLIENT}&ssl_keyfile={CLIENT}"
SPEAKING = ("--tls-cert-file", str(SERVER), "--tls-key-file", str(SERVER), "--tls-ca-cert-file", str(CA))


class Front:
    """Speaks TLS for a server on a socket, in a thread of its own.

    Args:
        path: Of the socket.
        asks: Whether clients must have a certificate.
    """

    def __init__(self, path: str, *, asks: bool) -> None:
        self._path = path
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(SERVER)
        if asks:
            self._context.load_verify_locations(CA)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(20)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_unix_connection(self._path)
        ways = asyncio.create_task(_pass_on(reader, to_behind)), asyncio.create_task(_pass_on(behind, writer))
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            to_behind.close()

    async def _end(self) -> None:
        self._server.close()
        mine = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not mine]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Ends all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()


def speaks_tls() -> bool:
    """Whether the redis-server of this machine was built for it."""
    asked = [str(find_server()), "--port", "0", "--tls-port", "0", "--unixsocket", "/"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return "tls-port" not in told.stdout + told.stderr


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    servers.stop()


@pytest.fixture
def needs_tls() -> None:
    if not speaks_tls():
        pytest.skip("this redis-server was built without TLS")


Opened = Callable[[bool], int]


@pytest.fixture(params=["front", "server"])
def opened(request: pytest.FixtureRequest, redis_server: EmbeddedRedis, servers: Servers) -> Iterator[Opened]:
    """Opens a port with TLS, on which clients may need a certificate."""
    fronts: list[Front] = []

    def open_port(asks: bool) -> int:
        if request.param == "front":
            fronts.append(Front(redis_server.url.removeprefix("unix://"), asks=asks))
            return fronts[-1].port
        port = free_port()
        asking = "yes" if asks else "no"
        servers.start(port, "--port", "0", "--tls-port", str(port), *SPEAKING, "--tls-auth-clients", asking)
        return port

    if request.param == "server":
        request.getfixturevalue("needs_tls")
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
    yield open_port
    for front in fronts:
        front.close()


async def keeps(url: str) -> None:
    """Something is kept, found, and heard of."""
    store = ResponseStore(url, Bounds(count=10, bytes=10**6, ttl_s=60))
    try:
        await store.put("r1", {"owner": "ann", "kind": "response", "body": {"a": 1}})
        assert await store.read("r1", "ann", "response", "body") == {"body": {"a": 1}}
    finally:
        await store.aclose()
    redis, listener = connect(url), connect_listener(url)
    assert await probe(redis, keeps_accounts=False) == []
    pubsub = listener.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("{wye}:test")
    heard = None
    async with asyncio.timeout(60):
        while heard is None:
            await command(redis, "PUBLISH", "{wye}:test", "x")
            heard = await pubsub.get_message(timeout=0.2)
    await pubsub.aclose()  # type: ignore[no-untyped-call]
    await listener.aclose()
    await redis.aclose()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_everything_is_kept_behind_tls_with_a_certificate_of_ones_own_authority(
    opened: Opened, host: str
) -> None:
    await keeps(f"rediss://{host}:{opened(False)}/0?{TRUSTING}")


async def test_a_server_that_asks_for_one_is_shown_a_certificate(opened: Opened) -> None:
    port = opened(True)
    await keeps(f"rediss://127.0.0.1:{port}/0?{KNOWN}")
    await refused(f"rediss://127.0.0.1:{port}/0?{TRUSTING}")


async def test_nothing_is_sent_to_a_server_that_nobody_trusts_or_that_does_not_speak_tls(
    opened: Opened, redis_server: EmbeddedRedis, servers: Servers
) -> None:
    port = opened(False)
    await refused(f"rediss://127.0.0.1:{port}/0")
    await refused(f"redis://127.0.0.1:{port}/0")
    plain = free_port()
    servers.start(plain)
    await refused(f"rediss://127.0.0.1:{plain}/0?{TRUSTING}")


async def refused(url: str) -> None:
    """Nothing is kept there."""
    store = ResponseStore(url, Bounds(count=10, bytes=10**6, ttl_s=60))
    with pytest.raises(StoreUnavailable):
        await store.put("r1", {"owner": "ann", "kind": "response", "body": {"a": 1}})
    await store.aclose()


@pytest.mark.usefixtures("needs_tls")
async def test_a_cluster_and_sentinels_are_reached_by_tls_too(servers: Servers) -> None:
    port, watched, watch = free_port(), free_port(), free_port()
    while port > 55_000:
        port = free_port()
    speaking = (*SPEAKING, "--tls-auth-clients", "no", "--tls-replication", "yes")
    servers.start(
        port, "--port", "0", "--tls-port", str(port), *speaking, "--cluster-enabled", "yes", "--tls-cluster", "yes"
    )
    async with connect(f"rediss://127.0.0.1:{port}/0?{TRUSTING}") as node:
        await command(node, "CLUSTER", "ADDSLOTS", *range(16384))
        await until_ok(lambda: command(node, "CLUSTER", "INFO"))
    await keeps(f"rediss+cluster://127.0.0.1:{port}?{TRUSTING}")
    servers.start(watched, "--port", "0", "--tls-port", str(watched), *speaking)
    names = ("tls-cert-file", SERVER), ("tls-key-file", SERVER), ("tls-ca-cert-file", CA)
    lines = [f"{name} {path}" for name, path in names]
    lines += [f"tls-port {watch}", "tls-auth-clients no", "tls-replication yes"]
    servers.start(watch, sentinel="\n".join(["port 0", *lines, f"sentinel monitor main 127.0.0.1 {watched} 1"]))
    await keeps(f"rediss+sentinel://127.0.0.1:{watch}/main?{TRUSTING}")


async def until_ok(ask: Callable[[], Awaitable[object]]) -> None:
    """Waits for a cluster to be one."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RedisError):
                if b"cluster_state:ok" in bytes(str(await ask()), "utf-8"):
                    return
            await asyncio.sleep(0.05)
