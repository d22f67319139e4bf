"""A stream, read to its end, is the whole answer: any parameters, a crowded server, a pool that preempts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.e2e import gauges
from tests.e2e.random_requests import answered, random_request, shown, summed, told
from tests.gateway.responses.wire import RESPONSES, events_of
from tests.gateway.wire import CHAT, TEXT, Body, chunks, text, whole

NUM_REQUESTS = 200
"""To each endpoint."""

SEED = 7


async def streamed(client: httpx.AsyncClient, path: str, body: Body) -> Any:
    """What a client reads from the stream."""
    answer = await client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, (answer.text, body)
    return told(events_of(answer.text)) if path == RESPONSES else summed(chunks(answer.text))


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES])
async def test_g_08_streamed_and_whole_answers_of_one_seed_are_the_same_in_a_crowd(
    client: httpx.AsyncClient, path: str
) -> None:
    rng = random.Random(SEED)
    room = asyncio.Semaphore(12)
    seen: Counter[str] = Counter()

    async def compare(body: Body) -> None:
        async with room:
            found, answer = await asyncio.gather(streamed(client, path, body), whole(client, body, path))
        expected = shown(answer) if path == RESPONSES else answered(answer)
        assert found == expected, body
        seen.update(kinds(path, expected))

    await asyncio.gather(*(compare(random_request(rng, path)) for _ in range(NUM_REQUESTS)))
    assert (await gauges.read(client, "wye_engine_preemptions_total"))["wye_engine_preemptions_total"] > 0
    await gauges.wait_for_quiet(client)
    wanted = {CHAT: {"text", "thought", "calls"}, TEXT: {"text"}, RESPONSES: {"message", "function_call"}}
    assert seen.keys() >= wanted[path]


def kinds(path: str, answer: Any) -> set[str]:
    """What there was in an answer."""
    if path == RESPONSES:
        return {item[0] for item in answer["items"]}
    return {name for choice in answer.values() for name in ("text", "thought", "calls") if choice[name]}


async def test_g_60_two_streams_of_one_client_id_keep_their_own_text(client: httpx.AsyncClient) -> None:
    bodies = [text(prompt=f"prompt {number}", temperature=0, max_tokens=60, ignore_eos=True) for number in range(2)]
    alone = [(await whole(client, body, TEXT))["choices"][0]["text"] for body in bodies]
    assert alone[0] != alone[1]

    async def send(body: Body) -> httpx.Response:
        same = {"X-Request-Id": "same"}
        return await client.post(TEXT, json={**body, "request_id": "same"}, headers=same)

    for _ in range(3):
        answers = await asyncio.gather(*(send(body) for body in bodies))
        assert [answer.json()["choices"][0]["text"] for answer in answers] == alone
        assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]
