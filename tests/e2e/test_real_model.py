"""Cases that need text that makes sense: SmolLM2 behind the whole server."""

from __future__ import annotations

import random

import httpx
import openai
import pytest

from loadtests.server import RunningServer
from tests.fakes import MODEL
from tests.gateway.wire import TEXT, chat, endings, joined, stream, text, whole

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

PARIS = [{"role": "user", "content": "What is the capital of France?"}]


async def test_g_73_a_chat_ends_by_itself_without_its_end_token(real_client: httpx.AsyncClient) -> None:
    parts = await stream(real_client, chat(messages=PARIS, temperature=0, max_tokens=60))
    assert endings(parts) == ["stop"]
    assert "Paris" in joined(parts)
    assert "<|" not in joined(parts)


async def test_g_14_g_15_g_16_g_75_any_part_of_a_text_can_stop_it(real_client: httpx.AsyncClient) -> None:
    body = text(prompt="The capital of France is", temperature=0, max_tokens=16, ignore_eos=True)
    full = (await whole(real_client, body, TEXT))["choices"][0]["text"]
    rng = random.Random(5)
    for _ in range(8):
        start = rng.randrange(len(full) - 1)
        stop = full[start : start + rng.randrange(1, 9)]
        before = full[: full.index(stop)]
        for keeps in (False, True):
            asked = {**body, "stop": [stop, "\0"], "include_stop_str_in_output": keeps}
            choice = (await whole(real_client, asked, TEXT))["choices"][0]
            assert choice["text"] == (before + stop if keeps else before)
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
            parts = await stream(real_client, asked, TEXT)
            assert (joined(parts), endings(parts)) == (choice["text"], ["stop"])


async def test_g_17_the_beginning_of_a_stop_string_is_text_if_the_rest_does_not_come(
    real_client: httpx.AsyncClient,
) -> None:
    body = text(prompt="The capital of France is", temperature=0, max_tokens=16, ignore_eos=True)
    full = (await whole(real_client, body, TEXT))["choices"][0]["text"]
    asked = {**body, "stop": [full[-3:] + "ZZ", full[5:9] + "\0"]}
    assert joined(await stream(real_client, asked, TEXT)) == full


async def test_g_36_a_greedy_answer_is_the_same_before_and_after_other_work(real_client: httpx.AsyncClient) -> None:
    body = chat(messages=PARIS, temperature=0, max_tokens=16)
    before = await whole(real_client, body)
    await whole(real_client, chat(messages=PARIS, temperature=1.5, seed=3, max_tokens=8, logit_bias={"28": 20}))
    assert (await whole(real_client, body))["choices"] == before["choices"]


async def test_g_02_g_74_the_official_client_rebuilds_a_streamed_message(real_server: RunningServer) -> None:
    client = openai.AsyncOpenAI(base_url=real_server.url, api_key="none", max_retries=0)
    options: openai.types.chat.ChatCompletionStreamOptionsParam = {"include_usage": True}
    async with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=60,
        stream_options=options,
    ) as events:
        async for _ in events:
            pass
        final = await events.get_final_completion()
    assert final.choices[0].message.role == "assistant"
    assert "Paris" in (final.choices[0].message.content or "")
    assert final.usage is not None
    assert final.usage.completion_tokens > 0
