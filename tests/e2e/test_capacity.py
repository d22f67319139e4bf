"""What fits, what does not, and what is shared (cases G-56, G-64, G-85)."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.e2e import gauges
from tests.e2e.conftest import NUM_PAGES, POOL_TOKENS
from tests.gateway.wire import CHAT, TEXT, Body, chat, refused, stream, text, whole


def cached(answer: Body) -> int:
    """Prompt tokens that were not computed."""
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize("streams", [False, True])
async def test_g_64_what_is_larger_than_the_pool_is_refused_and_blocks_nobody(
    client: httpx.AsyncClient, streams: bool
) -> None:
    body = text(prompt=[5] * (POOL_TOKENS + POOL_TOKENS // 10), stream=streams)
    error, answer = await asyncio.gather(refused(client, body, TEXT, param="prompt"), whole(client, chat()))
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(f"This model's maximum context length is {POOL_TOKENS} tokens")
    assert answer["choices"]


async def test_g_56_the_context_may_be_filled_to_its_last_token(client: httpx.AsyncClient) -> None:
    full = await whole(client, text(prompt=[5] * (POOL_TOKENS - 1), max_tokens=1, ignore_eos=True), TEXT)
    assert full["usage"]["total_tokens"] == POOL_TOKENS
    error = await refused(client, text(prompt=[5] * (POOL_TOKENS - 1), max_tokens=2), TEXT, param="prompt")
    asked = f"you requested {POOL_TOKENS + 1} ({POOL_TOKENS - 1} in the prompt, 2 for the completion)"
    assert asked in error["message"]


async def test_more_choices_than_pages_are_all_answered(client: httpx.AsyncClient) -> None:
    assert NUM_PAGES < 128
    answer = await whole(client, text(n=128, max_tokens=20, ignore_eos=True, temperature=1.5, seed=1), TEXT)
    assert [choice["index"] for choice in answer["choices"]] == list(range(128))
    assert answer["usage"]["completion_tokens"] == 128 * 20
    assert len({choice["text"] for choice in answer["choices"]}) == 128
    await gauges.wait_for_quiet(client)


async def test_many_prompts_of_one_request_wait_for_each_other(client: httpx.AsyncClient) -> None:
    prompts = [[number + 3] * 100 for number in range(30)]
    answer = await whole(client, text(prompt=prompts, max_tokens=4, temperature=0, ignore_eos=True), TEXT)
    alone = await whole(client, text(prompt=prompts[17], max_tokens=4, temperature=0, ignore_eos=True), TEXT)
    assert answer["choices"][17]["text"] == alone["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == 3000


async def test_three_hundred_connections_at_once_are_served(client: httpx.AsyncClient) -> None:
    async def one(number: int) -> int:
        answer = await client.post(TEXT, json=text(prompt=f"z{number}", max_tokens=3, stream=number % 2 == 0))
        return answer.status_code

    assert set(await asyncio.gather(*(one(number) for number in range(300)))) == {200}
    await gauges.wait_for_quiet(client)


async def test_g_85_a_cancelled_stream_leaves_its_prefix_to_the_next_turn(client: httpx.AsyncClient) -> None:
    history = [7, 9, 11] * 60
    body = text(prompt=history, max_tokens=200, ignore_eos=True, stream=True)
    async with client.stream("POST", TEXT, json=body) as answer:
        async for _ in answer.aiter_lines():
            break
    await gauges.wait_for_quiet(client)
    assert cached(await whole(client, text(prompt=[*history, 4, 5], max_tokens=1), TEXT)) >= 160


async def test_prefixes_are_shared_within_one_salt_only(client: httpx.AsyncClient) -> None:
    prompt = [13, 17, 19] * 20
    salts = ["a", "b", "a", "b", None, None]
    bodies = [text(prompt=prompt, max_tokens=1, cache_salt=salt) for salt in salts]
    hits = [cached(await whole(client, body, TEXT)) for body in bodies]
    assert hits == [0, 0, 48, 48, 0, 48]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_g_07_answers_and_streams_count_the_same_tokens(client: httpx.AsyncClient, path: str) -> None:
    body = {**(chat() if path == CHAT else text()), "max_tokens": 7, "ignore_eos": True, "n": 2}
    parts = await stream(client, {**body, "stream_options": {"include_usage": True}}, path)
    usage = (await whole(client, body, path))["usage"]
    assert usage["completion_tokens"] == parts[-1]["usage"]["completion_tokens"] == 14
    assert usage["prompt_tokens"] == parts[-1]["usage"]["prompt_tokens"]


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 9])
async def test_g_42_every_token_has_its_entry_even_if_the_last_character_is_unfinished(
    client: httpx.AsyncClient, max_tokens: int
) -> None:
    # Ids of single bytes alone: the answer hardly ever ends with a whole character.
    prompts = [[number, *range(60, 100)] for number in range(5, 17)]
    fields = {"echo": True, "logprobs": 1, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 1, "seed": 3}
    halves = list(range(131, 195))
    answer = await whole(client, text(prompt=prompts, allowed_token_ids=halves, **fields), TEXT)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert {len(column) for column in logprobs.values()} == {len(prompt) + max_tokens}


async def test_g_42_a_scored_prompt_that_is_preempted_keeps_all_its_entries(client: httpx.AsyncClient) -> None:
    async def score(number: int) -> None:
        prompt = [(number * 7 + place) % 300 + 100 for place in range(60)]
        fields = {"echo": True, "logprobs": 2, "n": 1 + number % 3, "ignore_eos": True, "seed": number}
        answer = await whole(client, text(prompt=prompt, max_tokens=40 + number % 60, **fields), TEXT)
        for choice in answer["choices"]:
            scores = choice["logprobs"]["token_logprobs"]
            assert scores[0] is None
            assert None not in scores[1:]
            assert len(scores) >= 60

    before = await gauges.read(client, "wye_engine_preemptions_total")
    await asyncio.gather(*(score(number) for number in range(60)))
    assert await gauges.read(client, "wye_engine_preemptions_total") != before
