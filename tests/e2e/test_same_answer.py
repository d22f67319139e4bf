"""A stream, read to its end, is the whole answer: any parameters, a crowded server, a pool that preempts."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

from tests.e2e import gauges
from tests.gateway.wire import CHAT, TEXT, Body, chat, stream, text, whole

NUM_REQUESTS = 200
SEED = 7


def random_request(rng: random.Random) -> tuple[str, Body]:
    """A request with some of the parameters that shape an answer."""
    words = [rng.choice(["the", "capital", "of", "日本", "🚀", "def", "1,", "\n"]) for _ in range(rng.randrange(1, 60))]
    max_tokens = rng.randrange(1, 60)
    possible: dict[str, Any] = {
        "n": rng.randrange(1, 4),
        "stop": rng.sample(["e", "th", "\n", "ing", "or", "zzz", "\ufffd"], 2),
        "include_stop_str_in_output": True,
        "top_p": rng.choice([0, 0.1, 0.9]),
        "top_k": rng.choice([-1, 1, 40]),
        "min_p": rng.choice([0.05, 1]),
        "presence_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.choice([0.5, 1.3]),
        "logit_bias": {str(rng.randrange(512)): rng.choice([-100, 5])},
        "min_tokens": rng.randrange(max_tokens + 1),
        "bad_words": ["the", "a"],
        "skip_special_tokens": False,
        "ignore_eos": True,
    }
    fields = {name: value for name, value in possible.items() if rng.random() < 0.3}
    fields |= {"seed": rng.randrange(-(2**63), 2**63), "temperature": rng.choice([0, 0.3, 1, 1.5, 2])}
    fields |= {"max_tokens": max_tokens, "return_token_ids": True}
    if rng.random() < 0.5:
        messages = [{"role": "user", "content": " ".join(words)}]
        return CHAT, chat(messages=messages, logprobs=True, top_logprobs=rng.randrange(4), **fields)
    prompt: str | list[str] = [" ".join(words), "hi"] if rng.random() < 0.3 else " ".join(words)
    return TEXT, text(prompt=prompt, logprobs=rng.randrange(4), echo=rng.random() < 0.3, **fields)


def summed(parts: list[Body]) -> dict[int, dict[str, Any]]:
    """The choices that chunks add up to; a choice must end once and say nothing after its end."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in parts for choice in chunk["choices"]):
        whole = choices.setdefault(choice["index"], {"text": "", "tokens": [], "ids": [], "end": None, "reason": None})
        assert whole["end"] is None
        whole["text"] += choice["text"] if "text" in choice else choice["delta"].get("content", "")
        whole["tokens"] += entries(choice["logprobs"])
        whole["ids"] += choice.get("token_ids") or []
        whole["end"], whole["reason"] = choice["finish_reason"], choice.get("stop_reason")
    return choices


def answered(answer: Body) -> dict[int, dict[str, Any]]:
    """The same of a whole answer."""
    return {
        choice["index"]: {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "tokens": entries(choice["logprobs"]),
            "ids": choice["token_ids"],
            "end": choice["finish_reason"],
            "reason": choice["stop_reason"],
        }
        for choice in answer["choices"]
    }


def entries(logprobs: Body | None) -> list[Any]:
    """Positions of a logprobs object, without the numbers: their last bits depend on how steps were composed."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [(entry["token"], entry["bytes"], len(entry["top_logprobs"])) for entry in logprobs["content"] or []]
    return list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))


async def test_g_08_streamed_and_whole_answers_of_one_seed_are_the_same_in_a_crowd(client: httpx.AsyncClient) -> None:
    rng = random.Random(SEED)
    room = asyncio.Semaphore(12)

    async def compare(path: str, body: Body) -> None:
        async with room:
            parts, answer = await asyncio.gather(stream(client, body, path), whole(client, body, path))
        assert summed(parts) == answered(answer), body

    await asyncio.gather(*(compare(*random_request(rng)) for _ in range(NUM_REQUESTS)))
    assert (await gauges.read(client, "wye_engine_preemptions_total"))["wye_engine_preemptions_total"] > 0
    await gauges.wait_for_quiet(client)


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
