"""Answers with a form, from SmolLM2 behind the whole server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pydantic
import pytest

from loadtests.server import RunningServer
from tests.fakes import MODEL
from tests.gateway.shapes import SCHEMAS, fits
from tests.gateway.wire import chat, joined, refused, stream, whole

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

ASKED = [{"role": "user", "content": "Invent one example of the data, as JSON."}]


def format_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
async def test_what_ends_by_itself_fits_its_schema_and_a_stream_says_the_same(
    real_client: httpx.AsyncClient, schema: Any
) -> None:
    num_whole = 0
    for temperature in (0.0, 1.2):
        body = chat(messages=ASKED, response_format=format_of(schema), max_tokens=120, temperature=temperature, seed=4)
        choice = (await whole(real_client, body))["choices"][0]
        said = choice["message"]["content"]
        assert joined(await stream(real_client, body)) == said
        assert choice["finish_reason"] in ("stop", "length")
        if choice["finish_reason"] == "stop":
            num_whole += 1
            assert fits(json.loads(said), schema), said
    assert num_whole or schema is SCHEMAS["a recursive one (G-35)"]


async def test_the_official_client_parses_answers_into_models(real_server: RunningServer) -> None:
    class Person(pydantic.BaseModel):
        name: str
        age: int
        likes: list[str]

    async with openai.AsyncOpenAI(base_url=real_server.url, api_key="none") as client:
        answer = await client.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": "Ann is 31 and likes tea. Answer in JSON."}],
            response_format=Person,
            temperature=0,
            max_tokens=100,
        )
    parsed = answer.choices[0].message.parsed
    assert parsed is not None
    assert parsed.name


async def test_constrained_streams_do_not_disturb_each_other_or_plain_ones(real_client: httpx.AsyncClient) -> None:
    bodies = [chat(messages=ASKED, temperature=0.9, seed=seed, max_tokens=40) for seed in range(4)]
    bodies += [{**body, "response_format": {"type": "json_object"}} for body in bodies]
    alone = [joined(await stream(real_client, body)) for body in bodies]
    bomb = asyncio.create_task(
        refused(real_client, chat(guided_json={"type": "integer", "multipleOf": 99_999_971}), param="guided_json")
    )
    together = await asyncio.gather(*(stream(real_client, body) for body in bodies))
    assert [joined(parts) for parts in together] == alone
    await bomb
