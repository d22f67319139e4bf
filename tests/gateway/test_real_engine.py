"""The whole way from HTTP to a small real model and back (cases that need true logits or a true KV pool)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from tests.fakes import make_settings
from tests.gateway.wire import CHAT, TEXT, chat, chunks, joined, refused, stream, text, whole
from tests.tiny_models import write_tiny_model

NUM_PAGES = 24
"""Of 16 tokens: a smaller pool than the model's context of 512."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    """A real engine in float32 that checks its pages whenever it is idle."""
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=NUM_PAGES),
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest.fixture
async def client(engine: EngineConnection, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app over the real engine."""
    app = create_app(make_settings(), engine=engine, text=TextModel.load(directory))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60) as client:
        yield client


def contents(answer: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


async def test_g_07_counts_are_true_in_both_modes(client: httpx.AsyncClient) -> None:
    body = chat(max_tokens=7, ignore_eos=True)
    streamed = (await stream(client, {**body, "stream_options": {"include_usage": True}}))[-1]["usage"]
    answered = (await whole(client, body))["usage"]
    assert streamed["completion_tokens"] == answered["completion_tokens"] == 7
    assert streamed["prompt_tokens"] == answered["prompt_tokens"]


async def test_g_08_g_52_seeded_choices_differ_from_each_other_and_repeat(client: httpx.AsyncClient) -> None:
    body = chat(n=3, seed=7, temperature=1.5, max_tokens=24, ignore_eos=True)
    first, second = [contents(await whole(client, body)) for _ in range(2)]
    assert len(set(first)) == 3
    assert first == second
    parts = await stream(client, body)
    assert [joined(parts, index) for index in range(3)] == first


@pytest.mark.parametrize("fields", [{"temperature": 1e-9}, {"temperature": 0.0001, "top_p": 0.0001}, {"top_p": 0}])
async def test_g_46_g_80_what_is_next_to_greedy_is_greedy(client: httpx.AsyncClient, fields: dict[str, float]) -> None:
    assert contents(await whole(client, chat(**fields))) == contents(await whole(client, chat(temperature=0)))


async def test_g_38_a_ban_leaves_finite_logprobs(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json=chat(logprobs=True, top_logprobs=20, logit_bias={"5": -100}))
    for entry in answer.json()["choices"][0]["logprobs"]["content"]:
        assert all(-9999.0 <= one["logprob"] <= 0 for one in [entry, *entry["top_logprobs"]])


async def test_g_40_g_42_g_84_echoed_logprobs_are_those_of_a_direct_forward_pass(
    client: httpx.AsyncClient, directory: Path
) -> None:
    from transformers import AutoModelForCausalLM

    prompts = ["one two three", "Your answer: Yes"]
    body = text(prompt=prompts, echo=True, max_tokens=0, temperature=0, logprobs=2, seed=1234)
    answer = await whole(client, body, TEXT)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = TextModel.load(directory).tokenizer
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        ids = tokenizer.encode(prompt, add_special=True)
        with torch.no_grad():
            logprobs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [logprobs[at, token].item() for at, token in enumerate(ids[1:])]
        assert choice["text"] == prompt
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    one = await whole(client, text(prompt=prompts[0], echo=True, logprobs=2, max_tokens=1), TEXT)
    assert len(one["choices"][0]["logprobs"]["tokens"]) == one["usage"]["prompt_tokens"] + 1


async def test_g_44_g_45_bad_ids_leave_the_engine_and_other_streams_alone(client: httpx.AsyncClient) -> None:
    others = [asyncio.create_task(stream(client, chat(max_tokens=16, ignore_eos=True))) for _ in range(4)]
    for fields in ({"logit_bias": {"600": 5}}, {"stop_token_ids": [512], "min_tokens": 1}, {"bad_words": [""]}):
        await refused(client, chat(**fields))
    assert [len(joined(parts)) > 0 for parts in await asyncio.gather(*others)] == [True] * 4


async def test_g_64_what_can_never_fit_the_pool_is_refused_at_once(client: httpx.AsyncClient) -> None:
    pool_tokens = NUM_PAGES * 16
    await refused(client, text(prompt=[5] * (pool_tokens + 40), max_tokens=8), TEXT, param="prompt")
    error = await refused(client, text(prompt=[5] * (pool_tokens - 4), max_tokens=8), TEXT, param="prompt")
    assert error["code"] == "context_length_exceeded"
    assert str(pool_tokens) in error["message"]
    await whole(client, chat())


async def test_g_85_the_prefix_of_a_cancelled_stream_is_reused(
    client: httpx.AsyncClient, engine: EngineConnection
) -> None:
    turn = {"role": "user", "content": "a long story about the capital of France " * 3}
    first = await whole(client, chat(messages=[turn], max_tokens=4))
    history = [turn, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "and then?"}]
    again = await whole(client, chat(messages=history, max_tokens=4))
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] - 32
    other = await whole(client, chat(messages=history, max_tokens=4, cache_salt="another"))
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_g_16_a_stop_token_ends_the_text_unseen(client: httpx.AsyncClient) -> None:
    tokens = await whole(client, text(temperature=0, ignore_eos=True, return_token_ids=True), TEXT)
    ids = tokens["choices"][0]["token_ids"]
    stopped = await whole(
        client, text(temperature=0, ignore_eos=True, stop_token_ids=[ids[3]], return_token_ids=True), TEXT
    )
    choice = stopped["choices"][0]
    assert choice["token_ids"] == ids[: ids.index(ids[3]) + 1]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[3])


async def test_g_63_g_65_requests_given_up_at_any_moment_leave_no_page_behind(
    client: httpx.AsyncClient, engine: EngineConnection
) -> None:
    async def give_up(number: int) -> None:
        body = chat(max_tokens=60, ignore_eos=True, stream=number % 2 == 0, n=1 + number % 2, seed=number)
        task = asyncio.create_task(client.post(CHAT, json=body))
        await asyncio.sleep(number % 23 / 300)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(give_up(number) for number in range(80)))
    for _ in range(3000):
        stats = engine.stats
        if stats.num_running == stats.num_waiting == stats.num_used_pages == 0:
            break
        await asyncio.sleep(0.02)
    assert (engine.stats.num_running, engine.stats.num_waiting, engine.stats.num_used_pages) == (0, 0, 0)
    answer = await client.post(CHAT, json=chat(stream=True))
    assert chunks(answer.text)
