"""Connections that are kept for the next request: how many, for how long, and that none is left open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx2
import pytest

from extensions.tools.kept import KeptConnections


@dataclass
class Server:
    """Answers every request, and knows its connections.

    Attributes:
        url: Where it is.
        writers: Of the connections that are open.
        num_accepted: Connections in all.
        num_asked: Requests in all.
        release: Cleared to hold answers back.
    """

    url: str = ""
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    num_accepted: int = 0
    num_asked: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_accepted += 1
        self.writers.add(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.num_asked += 1
                await self.release.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[Server]:
    """A server that runs."""
    server = Server()
    server.release.set()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    try:
        yield server
    finally:
        server.release.set()
        listening.close()
        for writer in tuple(server.writers):
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that runs."""
    async with answering() as one:
        yield one


@contextlib.asynccontextmanager
async def kept(keeps: int, kept_s: float = 600.0) -> AsyncIterator[KeptConnections]:
    """Connections that are closed at the end."""
    connections = KeptConnections(ssl=httpx2.create_ssl_context(), keeps=keeps, kept_s=kept_s)
    try:
        yield connections
    finally:
        await connections.aclose()


async def ask(connections: KeptConnections, url: str) -> bytes:
    """One request and its answer."""
    response = await connections.handle_async_request(httpx2.Request("GET", url))
    try:
        return await response.aread()
    finally:
        await response.aclose()


async def until(is_so: Callable[[], bool]) -> None:
    """Waits for something."""
    async with asyncio.timeout(60):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.005)


async def ask_at_once(connections: KeptConnections, server: Server, count: int) -> None:
    """Requests of which none is answered before all have been sent."""
    server.release.clear()
    asked = server.num_asked + count
    asking = [asyncio.ensure_future(ask(connections, server.url)) for _ in range(count)]
    await until(lambda: server.num_asked == asked)
    server.release.set()
    assert await asyncio.gather(*asking) == [b"ok"] * count


async def test_one_connection_serves_requests_one_after_the_other(server: Server) -> None:
    async with kept(8) as connections:
        for _ in range(5):
            assert await ask(connections, server.url) == b"ok"
        assert (server.num_accepted, connections.num_idle, connections.num_busy) == (1, 1, 0)


async def test_requests_at_once_have_a_connection_each_and_are_served_by_them_again(server: Server) -> None:
    async with kept(20) as connections:
        await ask_at_once(connections, server, 20)
        await ask_at_once(connections, server, 20)
        assert server.num_accepted == 20


async def test_no_more_are_kept_than_allowed(server: Server) -> None:
    async with kept(3) as connections:
        await ask_at_once(connections, server, 10)
        await until(lambda: len(server.writers) == 3)
        assert connections.num_idle == 3


async def test_none_is_kept_where_none_may_be(server: Server) -> None:
    async with kept(0) as connections:
        await ask(connections, server.url)
        await ask(connections, server.url)
        assert server.num_accepted == 2
        await until(lambda: not server.writers)
        assert connections.num_idle == 0


async def test_what_nobody_used_for_long_is_closed(server: Server) -> None:
    async with kept(8, kept_s=0.05) as connections:
        await ask_at_once(connections, server, 4)
        await until(lambda: not server.writers)
        assert connections.num_idle == 0


async def test_a_connection_that_the_server_has_closed_is_not_used(server: Server) -> None:
    async with kept(8) as connections:
        await ask(connections, server.url)
        for writer in tuple(server.writers):
            writer.close()
        await until(lambda: not server.writers)
        assert await ask(connections, server.url) == b"ok"
        assert server.num_accepted == 2


async def test_a_request_that_is_given_up_leaves_no_connection(server: Server) -> None:
    async with kept(8) as connections:
        server.release.clear()
        asking = asyncio.ensure_future(ask(connections, server.url))
        await until(lambda: server.num_asked == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (connections.num_idle, connections.num_busy) == (0, 0)
        server.release.set()
        await until(lambda: not server.writers)


async def test_a_connection_is_not_used_again_if_its_answer_was_given_up_while_it_was_closed(server: Server) -> None:
    async with kept(8) as connections:

        async def give_up() -> None:
            response = await connections.handle_async_request(httpx2.Request("GET", server.url))
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # arrives at the first wait of closing
            await response.aclose()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(give_up())
        assert (connections.num_idle, connections.num_busy) == (0, 0)
        await until(lambda: not server.writers)
        assert await ask(connections, server.url) == b"ok"
        assert server.num_accepted == 2


async def test_an_answer_that_is_not_read_to_its_end_leaves_no_open_connection(server: Server) -> None:
    async with kept(8) as connections:
        response = await connections.handle_async_request(httpx2.Request("GET", server.url))
        await response.aclose()
        await until(lambda: not server.writers)
        assert await ask(connections, server.url) == b"ok"
        assert (server.num_accepted, connections.num_busy) == (2, 0)


async def test_no_connection_is_left_where_nobody_listens() -> None:
    async with answering() as gone:
        url = gone.url
    async with kept(8) as connections:
        with pytest.raises(httpx2.ConnectError):
            await ask(connections, url)
        assert (connections.num_idle, connections.num_busy) == (0, 0)


async def test_a_connection_leads_where_it_was_made_for(server: Server) -> None:
    async with answering() as other, kept(8) as connections:
        for url in (server.url, other.url, server.url, other.url):
            await ask(connections, url)
        assert (server.num_accepted, other.num_accepted, connections.num_idle) == (1, 1, 2)


async def test_the_end_closes_those_in_use_too(server: Server) -> None:
    async with kept(8) as connections:
        await ask_at_once(connections, server, 2)
        server.release.clear()
        response_of = asyncio.ensure_future(ask(connections, server.url))
        await until(lambda: server.num_asked == 3)
        await connections.aclose()
        with pytest.raises(httpx2.TransportError):
            await response_of
        server.release.set()
        await until(lambda: not server.writers)
        assert (connections.num_idle, connections.num_busy) == (0, 0)
