"""Guessing ahead over HTTP: the same answers, and how many guesses were right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from tests.fakes import make_settings
from tests.gateway.wire import TEXT, Body, chat, joined, refused, stream, text, whole
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    """A real engine in float32 that checks its pages whenever it is idle."""
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=64)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest.fixture
async def client(engine: EngineConnection, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine, directory) as client:
        yield client


def client_of(engine: EngineConnection, directory: Path, **settings: Any) -> httpx.AsyncClient:
    app = create_app(make_settings(**settings), engine=engine, text=TextModel.load(directory))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=120)


def details(answer: Body) -> tuple[int, int]:
    counted = answer["usage"]["completion_tokens_details"]
    return counted["accepted_prediction_tokens"], counted["rejected_prediction_tokens"]


def predicted(content: str | list[Body]) -> Body:
    return {"prediction": {"type": "content", "content": content}}


SEEDED = {"max_tokens": 40, "temperature": 0.8, "seed": 3, "ignore_eos": True}


async def test_a_predicted_answer_is_the_answer_in_every_particular(client: httpx.AsyncClient) -> None:
    body = chat(**SEEDED, logprobs=True, top_logprobs=2, n=2)
    plain = await whole(client, body)
    content = plain["choices"][0]["message"]["content"]
    answer = await whole(client, body | predicted(content))
    for mine, theirs in zip(answer["choices"], plain["choices"], strict=True):
        assert mine["message"] == theirs["message"]
        assert mine["finish_reason"] == theirs["finish_reason"]
        tokens = [entry["token"] for entry in mine["logprobs"]["content"]]
        assert tokens == [entry["token"] for entry in theirs["logprobs"]["content"]]
    assert answer["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] == 80
    assert details(plain) == (0, 0)
    assert details(answer)[0] > 0


async def test_a_stop_string_cuts_the_same_text_and_the_same_count(client: httpx.AsyncClient) -> None:
    whole_text = (await whole(client, chat(**SEEDED)))["choices"][0]["message"]["content"]
    body = chat(**SEEDED, stop=[whole_text[20:23]])
    plain = await whole(client, body)
    answer = await whole(client, body | predicted(whole_text))
    assert answer["choices"] == plain["choices"]
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] < 40
    assert details(answer)[0] > 0


async def test_a_stream_has_the_same_text_and_counts(client: httpx.AsyncClient) -> None:
    body = chat(**SEEDED, stream_options={"include_usage": True})
    plain = await stream(client, body)
    parts = await stream(client, body | predicted([{"type": "text", "text": joined(plain)}]))
    assert joined(parts) == joined(plain)
    assert parts[-1]["usage"]["completion_tokens"] == 40
    assert details(parts[-1])[0] > 0


async def test_what_repeats_in_a_prompt_is_guessed_when_asked_for_or_by_setting(
    client: httpx.AsyncClient, engine: EngineConnection, directory: Path
) -> None:
    body = text(prompt=[5, 6, 7, 8] * 6, max_tokens=48, temperature=0, ignore_eos=True)
    plain = await whole(client, body, TEXT)
    fine = {"type": "prompt_lookup", "min_match": 1, "max_match": 2, "max_tokens": 4}
    answer = await whole(client, body | {"drafter": fine}, TEXT)
    assert answer["choices"] == plain["choices"]
    assert sum(details(answer)) > 0 == sum(details(plain))
    async with client_of(engine, directory, drafter="prompt_lookup") as other:
        default = await whole(other, body, TEXT)
        off = await whole(other, body | {"drafter": "none"}, TEXT)
    assert default["choices"] == off["choices"] == plain["choices"]
    assert sum(details(off)) == 0


async def test_what_is_no_drafter_or_prediction_is_refused(client: httpx.AsyncClient) -> None:
    for body, param in (
        ({"drafter": "crystal_ball"}, "drafter.type"),
        ({"drafter": {"type": "prompt_lookup", "max_tokens": 65}}, "drafter.max_tokens"),
        ({"drafter": {"type": "prompt_lookup", "min_match": 5, "max_match": 4}}, "drafter.min_match"),
        ({"drafter": "none", **predicted("x")}, "prediction"),
        (predicted("word " * 4000), "prediction"),
        ({"prediction": {"type": "image", "content": "x"}}, "prediction.type"),
        (predicted([{"type": "image_url", "text": "x"}]), None),
    ):
        await refused(client, chat(**body), param=param)


async def test_a_program_guesses_ahead_and_its_answer_is_the_same(client: httpx.AsyncClient) -> None:
    source = """
async def main(request, lm):
    ctx = await lm.context(request.messages)
    plain, guessed, off = await ctx.fork(3)
    one = await plain.generate(max_tokens=40, seed=3, temperature=0.8, template_stops=False)
    fine = {"type": "prompt_lookup", "reference": one.tokens, "max_tokens": 8}
    two = await guessed.generate(max_tokens=40, seed=3, temperature=0.8, template_stops=False, drafter=fine)
    three = await off.generate(max_tokens=40, seed=3, temperature=0.8, template_stops=False, drafter="none")
    found = [[answer.tokens, answer.usage.drafted_tokens, answer.usage.accepted_tokens] for answer in [one, two, three]]
    try:
        await ctx.generate(max_tokens=4, drafter=request.args["drafter"])
    except ValueError as error:
        return {"found": found, "error": str(error)}
"""
    args = {"drafter": "crystal_ball"}
    result = (await whole(client, chat(extension={"source": source, "args": args})))["extension"]["result"]
    plain, drafted, off = result["found"]
    assert plain[0] == drafted[0] == off[0]
    assert drafted[1] >= drafted[2] > 0 == plain[1] == off[1]
    assert result["error"].startswith("invalid_argument: drafter must be one of prompt_lookup, none")
