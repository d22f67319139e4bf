"""Clients that leave at any moment, in any way (cases G-62, G-63, G-65, G-68)."""

from __future__ import annotations

import asyncio
import random
import socket

import httpx

from loadtests.server import RunningServer
from tests.e2e import gauges
from tests.e2e.sockets import give_up, request
from tests.gateway.wire import CHAT, TEXT, Body, chat, text, whole

NUM_CLIENTS = 120


def random_work(rng: random.Random) -> tuple[str, Body]:
    """Short and long prompts and answers, several choices and prompts, streamed or not."""
    prompt = "y " * rng.choice([1, 20, 200])
    fields = {
        "max_tokens": rng.choice([1, 10, 100]),
        "n": rng.choice([1, 1, 3]),
        "stream": rng.random() < 0.5,
        "ignore_eos": True,
        "seed": rng.randrange(100),
    }
    if rng.random() < 0.5:
        return CHAT, chat(messages=[{"role": "user", "content": prompt}], **fields)
    return TEXT, text(prompt=[prompt] * rng.choice([1, 3]), **fields)


async def test_g_63_g_65_whoever_leaves_whenever_leaves_no_page_behind(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    rng = random.Random(3)
    room = asyncio.Semaphore(24)

    async def leave(number: int) -> None:
        path, body = random_work(rng)
        data = request(path, body)
        if number % 5 == 0:
            data = data[: len(data) // 2]
        async with room:
            await give_up(server.port, data, after_s=rng.random() ** 3, resets=number % 2 == 0)

    async def stay(number: int) -> None:
        path, body = random_work(rng)
        async with room:
            answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert '"error"' not in answer.text

    await asyncio.gather(*(stay(number) if number % 4 == 0 else leave(number) for number in range(NUM_CLIENTS)))
    await gauges.wait_for_quiet(client)
    await whole(client, chat())


async def test_g_62_a_whole_answer_nobody_waits_for_is_ended(server: RunningServer, client: httpx.AsyncClient) -> None:
    before = await gauges.read(client, "wye_engine_decode_tokens_total")
    # As much as takes far longer than it takes to see that nobody waits.
    body = text(prompt=["y"] * 64, max_tokens=600, ignore_eos=True)
    await give_up(server.port, request(TEXT, body), after_s=0.05, resets=False)
    await gauges.wait_for_quiet(client)
    after = await gauges.read(client, "wye_engine_decode_tokens_total")
    name = "wye_engine_decode_tokens_total"
    assert after[name] - before[name] < 64 * 600


async def test_g_65_gauges_fall_back_when_fifty_streams_end_together(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    body = text(max_tokens=500, ignore_eos=True, stream=True)
    data = request(TEXT, body)
    tasks = [asyncio.create_task(give_up(server.port, data, after_s=0.5, resets=False)) for _ in range(50)]
    await asyncio.gather(*tasks)
    await gauges.wait_for_quiet(client)


async def test_g_68_a_stalled_reader_keeps_nobody_waiting(server: RunningServer, client: httpx.AsyncClient) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(request(TEXT, text(max_tokens=600, ignore_eos=True, stream=True, logprobs=20)))
        assert stalled.recv(1) == b"H"
        for _ in range(5):
            await whole(client, chat(max_tokens=4))
    await gauges.wait_for_quiet(client)
