"""Embeddings of a whole server: beside streams, and when clients leave."""

from __future__ import annotations

import asyncio
import base64
import random

import httpx
import numpy as np
import openai
import pytest

from loadtests.server import RunningServer
from tests.e2e import gauges
from tests.e2e.sockets import give_up, request
from tests.fakes import MODEL
from tests.gateway.wire import TEXT, Body, joined, stream, text, whole

PATH = "/v1/embeddings"
WIDTH = 64
NUM_STREAMS = 8


def asks(number: int) -> Body:
    """A text of its own."""
    return {"model": MODEL, "input": f"text number {number} " * (1 + number % 5)}


async def test_64_embeddings_beside_8_streams_are_those_of_a_quiet_server_and_change_no_stream(
    client: httpx.AsyncClient,
) -> None:
    streams = [
        text(prompt=f"story {number}", seed=number, temperature=0.8, max_tokens=40, ignore_eos=True)
        for number in range(NUM_STREAMS)
    ]
    alone = [joined(await stream(client, body, TEXT)) for body in streams]
    quiet = [(await whole(client, asks(number), PATH))["data"][0]["embedding"] for number in range(64)]
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(stream(client, body, TEXT)) for body in streams]
        embeddings = [group.create_task(whole(client, asks(number), PATH)) for number in range(64)]
    assert [joined(one.result()) for one in running] == alone
    found = [one.result()["data"][0]["embedding"] for one in embeddings]
    assert all(len(vector) == WIDTH for vector in found)
    np.testing.assert_allclose(found, quiet, atol=1e-5)
    batch = await whole(client, {"input": [asks(number)["input"] for number in range(64)]}, PATH)
    np.testing.assert_allclose([entry["embedding"] for entry in batch["data"]], quiet, atol=1e-5)


async def test_the_official_client_gets_what_curl_gets(server: RunningServer, client: httpx.AsyncClient) -> None:
    texts = ["one", "and another"]
    raw = await whole(client, {"input": texts, "encoding_format": "base64"}, PATH)
    packed = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").tolist() for entry in raw["data"]]
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="k") as sdk:
        by_default = await sdk.embeddings.create(model=MODEL, input=texts)
        as_numbers = await sdk.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for one, other, third in zip(by_default.data, as_numbers.data, packed, strict=True):
        assert len(one.embedding) == WIDTH
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert one.embedding == pytest.approx(third, abs=1e-5)


async def test_whoever_leaves_in_the_middle_leaves_no_page_behind(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    rng = random.Random(5)
    long: Body = {"input": ["word " * 100] * 40}
    bodies: list[tuple[str, Body]] = [(PATH, long), ("/rerank", {"query": "a", "documents": long["input"]})]

    async def leave(number: int) -> None:
        path, body = bodies[number % len(bodies)]
        await give_up(server.port, request(path, body), after_s=rng.random() ** 2, resets=number % 3 == 0)

    await asyncio.gather(*(leave(number) for number in range(24)))
    await gauges.wait_for_quiet(client)
    assert len((await whole(client, asks(0), PATH))["data"][0]["embedding"]) == WIDTH


async def test_a_text_that_no_pool_could_hold_is_refused_and_others_go_on(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json={"input": ["fits", "word " * 700]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[1]"
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    cut = await whole(client, {"input": ["fits", "word " * 700], "truncate_prompt_tokens": 16}, PATH)
    assert len(cut["data"]) == 2
