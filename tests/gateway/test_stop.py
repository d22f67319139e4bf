"""Stop strings and stop tokens as clients see them (cases of table B)."""

from __future__ import annotations

import httpx
import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, says
from tests.gateway.wire import TEXT, chat, endings, joined, refused, stream, text, whole


@pytest.mark.parametrize("per_event", [1, 3, 100])
@pytest.mark.parametrize(
    ("said", "stop", "seen"),
    [
        pytest.param("ABCDEFGHIJKL", "DEFGHIJ", "ABC", id="g_14_nothing_of_the_stop_string_is_sent"),
        pytest.param("alpha beta gamma delta", "beta gamma", "alpha ", id="g_15_a_stop_string_spans_tokens"),
        pytest.param("hello world", "wor", "hello ", id="g_16_a_stop_string_ends_inside_a_token"),
        pytest.param("wait... go", "..", "wait", id="g_75_a_stop_string_lies_inside_a_token"),
    ],
)
async def test_text_ends_before_the_stop_string(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    model: TextModel,
    said: str,
    stop: str,
    seen: str,
    per_event: int,
) -> None:
    engine.script = says(model, said, per_event=per_event)
    parts = await stream(client, chat(stop=[stop]))
    answer = await whole(client, chat(stop=stop))
    completion = await whole(client, text(stop=[stop], max_tokens=32), TEXT)
    assert joined(parts) == answer["choices"][0]["message"]["content"] == completion["choices"][0]["text"] == seen
    assert endings(parts) == ["stop"]
    assert answer["choices"][0]["stop_reason"] == stop
    assert not engine.streams


async def test_g_16_a_stop_token_is_not_shown(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    end = engine.info.eos_token_ids[0]
    engine.script = lambda request, index: [[40], [end], [41]]
    answer = await whole(client, text(stop_token_ids=[end]), TEXT)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == end
    assert "<|end|>" not in choice["text"]


async def test_g_17_held_back_text_is_delivered_when_no_stop_string_follows(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "a < b ZZ end")
    assert joined(await stream(client, chat(stop=["ZZZZZZ"]))) == "a < b ZZ end"
    engine.script = says(model, "a < b ZZ")
    assert joined(await stream(client, chat(stop=["ZZZZZZ"]))) == "a < b ZZ"


@pytest.mark.parametrize("stop", ["", ["", "x"]])
async def test_g_19_an_empty_stop_string_is_refused(client: httpx.AsyncClient, stop: object) -> None:
    await refused(client, chat(stop=stop), param="stop")


async def test_the_stop_string_is_kept_on_request(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "one two three")
    parts = await stream(client, chat(stop=["two"], include_stop_str_in_output=True))
    assert joined(parts) == "one two"


async def test_sixteen_stop_strings_are_taken_and_seventeen_are_not(client: httpx.AsyncClient) -> None:
    await whole(client, chat(stop=[f"<{number}>" for number in range(16)]))
    await refused(client, chat(stop=[f"<{number}>" for number in range(17)]), param="stop")


async def test_an_empty_list_of_stop_strings_means_none(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(stop=[]))
    assert answer["choices"][0]["message"]["content"] == "Hello there."
