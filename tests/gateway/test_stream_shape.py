"""What streams look like on the wire (cases of table A)."""

from __future__ import annotations

import json

import httpx
import pytest

from engine.errors import EngineError, EngineStopped, OutOfPages, QueueFull
from engine.request import GenerateRequest
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, repeats, says, scripted_client
from tests.gateway.wire import CHAT, TEXT, chat, chunks, data_lines, endings, joined, refused, stream, text, whole

USAGE = {"include_usage": True}


async def test_g_01_only_the_first_chunk_has_a_role(client: httpx.AsyncClient) -> None:
    first, *rest = await stream(client, chat())
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in rest)


async def test_g_03_finish_reason_is_null_on_every_chat_chunk_but_the_last(client: httpx.AsyncClient) -> None:
    *before, last = await stream(client, chat())
    assert [chunk["choices"][0]["finish_reason"] for chunk in before] == [None] * len(before)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["choices"][0]["delta"] == {}


async def test_g_04_finish_reason_is_null_on_every_text_chunk_but_the_last(client: httpx.AsyncClient) -> None:
    *before, last = await stream(client, text(max_tokens=3), TEXT)
    assert [chunk["choices"][0]["finish_reason"] for chunk in before] == [None] * len(before)
    assert last["choices"][0]["finish_reason"] == "length"


async def test_g_05_usage_comes_once_in_a_last_chunk_without_choices(client: httpx.AsyncClient) -> None:
    *before, last = await stream(client, chat(stream_options=USAGE))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
    assert all(chunk["usage"] is None for chunk in before)


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (TEXT, text())])
async def test_g_06_no_chunk_is_without_choices_unless_usage_was_asked_for(
    client: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    parts = await stream(client, body, path)
    assert all(chunk["choices"] for chunk in parts)
    assert all("usage" not in chunk for chunk in parts)


async def test_g_07_streamed_usage_equals_whole_usage(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    body = chat(max_tokens=7, ignore_eos=True)
    streamed = (await stream(client, {**body, "stream_options": USAGE}))[-1]["usage"]
    answered = (await whole(client, body))["usage"]
    assert streamed == answered
    assert streamed["completion_tokens"] == 7


async def test_g_08_each_choice_has_its_index_one_role_and_one_end(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    words = ["first words", "and others"]
    ids = [model.tokenizer.encode(word, add_special=False) for word in words]
    engine.script = lambda request, index: [[token] for token in ids[index]]
    parts = await stream(client, chat(n=2, seed=11, temperature=1))
    choices = [chunk["choices"][0] for chunk in parts]
    for index, word in enumerate(words):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in mine].count("assistant") == 1
        assert endings(parts, index) == ["stop"]
        assert joined(parts, index) == word
    answer = await whole(client, chat(n=2, seed=11, temperature=1))
    assert [choice["message"]["content"] for choice in answer["choices"]] == words
    assert engine.last.sampling.seed == 11


async def test_g_09_no_choices_at_all_is_refused_before_the_stream(client: httpx.AsyncClient) -> None:
    await refused(client, chat(n=0, stream=True), param="n")


@pytest.mark.parametrize("per_event", [1, 2, 5])
async def test_g_11_no_character_is_ever_split(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, per_event: int
) -> None:
    words = "ok 👩‍🚀🚀 done"
    engine.script = says(model, words, per_event=per_event)
    parts = await stream(client, chat(max_tokens=64))
    assert joined(parts) == words
    assert all("�" not in json.dumps(chunk, ensure_ascii=False) for chunk in parts)


@pytest.mark.parametrize(
    ("path", "body", "kind"), [(CHAT, chat(), "chat.completion.chunk"), (TEXT, text(), "text_completion")]
)
async def test_g_12_every_chunk_says_whose_it_is_and_done_ends_the_stream(
    client: httpx.AsyncClient, path: str, body: dict[str, object], kind: str
) -> None:
    answer = await client.post(path, json={**body, "stream": True, "stream_options": USAGE})
    parts = chunks(answer.text)
    assert {chunk["object"] for chunk in parts} == {kind}
    for name in ("id", "created", "model"):
        assert len({chunk[name] for chunk in parts}) == 1
    assert isinstance(parts[0]["created"], int)
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_g_13_a_failure_after_the_first_byte_is_an_error_event(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str
) -> None:
    engine.script = lambda request, index: [[40], [41], [42], EngineStopped("the engine process ended")]
    body = chat(stream=True) if path == CHAT else text(stream=True)
    answer = await client.post(path, json=body)
    *before, failure, done = data_lines(answer.text)
    assert answer.status_code == 200
    assert len(before) >= 3
    error = json.loads(failure)["error"]
    assert error == {
        "message": "the engine process ended",
        "type": "server_error",
        "param": None,
        "code": "engine_stopped",
    }
    assert done == "[DONE]"
    assert all(choice["finish_reason"] is None for line in before for choice in json.loads(line)["choices"])
    assert not engine.streams


async def test_an_unforeseen_failure_in_a_stream_tells_nothing_of_its_cause(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda request, index: [[40], EngineError("secret /path")]
    answer = await client.post(CHAT, json=chat(stream=True))
    error = json.loads(data_lines(answer.text)[-2])["error"]
    assert error["code"] == "internal_error"
    assert "secret" not in answer.text


async def test_running_out_of_pages_in_a_stream_is_an_overload(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda request, index: [[40], OutOfPages(4, 0)]
    answer = await client.post(CHAT, json=chat(stream=True))
    assert json.loads(data_lines(answer.text)[-2])["error"]["code"] == "server_is_overloaded"


async def test_g_73_the_end_token_is_seen_in_no_delta(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    end = engine.info.eos_token_ids[0]
    ids = model.tokenizer.encode("bye", add_special=False)
    engine.script = lambda request, index: [ids]
    parts = await stream(client, chat(max_tokens=200, return_token_ids=True))
    assert joined(parts) == "bye"
    assert endings(parts) == ["stop"]
    assert [token for chunk in parts for token in chunk["choices"][0].get("token_ids", [])] == [*ids, end]
    assert parts[0]["prompt_token_ids"] == engine.last.prompt_ids
    assert all("prompt_token_ids" not in part for part in parts[1:])


async def test_every_choice_of_a_text_stream_shows_the_ids_of_its_prompt_once(client: httpx.AsyncClient) -> None:
    parts = await stream(client, text(prompt=[[2, 3], [4]], n=2, return_token_ids=True), TEXT)
    choices = [one for part in parts for one in part["choices"] if "prompt_token_ids" in one]
    shown = [(one["index"], one["prompt_token_ids"]) for one in choices]
    assert sorted(shown) == [(0, [2, 3]), (1, [2, 3]), (2, [4]), (3, [4])]


async def test_stream_headers_keep_proxies_from_buffering(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json=chat(stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    assert "\nid:" not in answer.text
    assert "\r" not in answer.text


async def test_running_usage_grows_with_every_chunk(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    engine.num_cached_tokens = 5
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = await stream(client, chat(max_tokens=4, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in parts]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert parts[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}
    parts = await stream(client, chat(max_tokens=4, stream_options={"continuous_usage_stats": True}))
    assert all("usage" not in chunk for chunk in parts)


async def test_several_prompts_stream_interleaved_under_their_own_indices(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    def script(request: GenerateRequest, index: int) -> list[list[int]]:
        return [[request.prompt_ids[0]], [40 + index]]

    engine.script = script
    parts = await stream(client, text(prompt=["a", "b"], n=2, echo=True, stream_options=USAGE), TEXT)
    plain = model.tokenizer.decode
    for index in range(4):
        prompt = "ab"[index // 2]
        assert joined(parts, index) == prompt + prompt + plain([40 + index % 2])
        assert endings(parts, index) == ["stop"]
    assert parts[-1]["usage"]["prompt_tokens"] == 2
    assert len({request.request_id for request in engine.requests}) == 2


async def test_a_failure_of_one_prompt_ends_the_stream_and_the_others(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    bad = model.tokenizer.encode("b", add_special=False)

    def script(request: GenerateRequest, index: int) -> list[list[int] | EngineError | float]:
        return [[40], EngineStopped("gone")] if request.prompt_ids == bad else [[41], 30.0]

    engine.script = script
    answer = await client.post(TEXT, json=text(prompt=["a", "b"], stream=True))
    assert json.loads(data_lines(answer.text)[-2])["error"]["message"] == "gone"
    assert not engine.streams


async def test_an_empty_stream_still_has_role_end_and_done(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: []
    parts = await stream(client, chat())
    assert joined(parts) == ""
    assert endings(parts) == ["stop"]
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_a_stream_is_refused_with_a_status_when_the_queue_is_full(
    engine: ScriptedEngine, model: TextModel
) -> None:
    engine.refusal = QueueFull(9)
    async with scripted_client(engine, model) as client:
        answer = await client.post(CHAT, json=chat(stream=True))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "server_is_overloaded"
