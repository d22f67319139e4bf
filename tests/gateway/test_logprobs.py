"""Log-probabilities and echo (cases of table E)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, logprob_of, repeats, says, scripted_client, text_model
from tests.gateway.wire import TEXT, chat, endings, joined, refused, stream, text, whole


def entries(answer: dict[str, Any]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
    return content


async def test_g_37_entries_carry_the_true_bytes_of_their_tokens(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "😊")
    found = entries(await whole(client, chat(logprobs=True, top_logprobs=3)))
    assert len(found) > 1
    assert bytes(byte for entry in found for byte in entry["bytes"]) == "😊".encode()
    assert all(len(entry["top_logprobs"]) == 3 for entry in found)
    streamed = await stream(client, chat(logprobs=True, top_logprobs=3))
    pieces = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    assert [entry for piece in pieces if piece for entry in piece["content"]] == found


async def test_g_38_every_logprob_is_a_finite_number(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    found = entries(await whole(client, chat(logprobs=True, top_logprobs=20, logit_bias={"5": -100}, max_tokens=3)))
    for entry in found:
        assert all(-9999.0 <= one["logprob"] <= 0 for one in [entry, *entry["top_logprobs"]])
    assert engine.last.sampling.logit_bias == {5: -100.0}


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
async def test_g_37_a_character_cut_by_the_limit_is_no_text_but_has_its_entries(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, max_tokens: int
) -> None:
    engine.script = says(model, "a😊")
    assert len(model.tokenizer.encode("a😊", add_special=False)) == 4
    body = chat(logprobs=True, max_tokens=max_tokens, return_token_ids=True)
    answer = await whole(client, body)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "a"
    assert bytes(byte for entry in entries(answer) for byte in entry["bytes"]).startswith(b"a")
    assert len(entries(answer)) == max_tokens
    assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] == max_tokens
    assert joined(await stream(client, body)) == "a"


@pytest.mark.parametrize("fields", [{"top_logprobs": 0}, {"top_logprobs": None}, {}])
async def test_g_39_without_alternatives_the_list_is_empty(
    client: httpx.AsyncClient, model: TextModel, fields: dict[str, Any]
) -> None:
    found = entries(await whole(client, chat(logprobs=True, **fields)))
    assert len(found) == len(model.tokenizer.encode("Hello there.", add_special=False))
    assert all(entry["top_logprobs"] == [] for entry in found)


async def test_g_40_echo_without_new_tokens_returns_the_prompt_alone(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    answer = await whole(client, text(prompt="Your answer: Yes", max_tokens=0, echo=True, logprobs=1), TEXT)
    choice, usage = answer["choices"][0], answer["usage"]
    assert choice["text"] == "Your answer: Yes"
    assert {len(values) for values in choice["logprobs"].values()} == {usage["prompt_tokens"]}
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["finish_reason"] == "length"
    assert usage["completion_tokens"] == 0
    assert engine.last.sampling.max_tokens == 0


async def test_g_40_a_prompt_that_fills_the_context_can_be_scored(model: TextModel) -> None:
    engine = ScriptedEngine(model, repeats(40), max_model_len=64)
    async with scripted_client(engine, model) as client:
        body = text(prompt=[40] * 64, max_tokens=0, logprobs=1, echo=True)
        answer = await whole(client, body, TEXT)
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == 64
        error = await refused(client, {**body, "prompt": [40] * 65}, TEXT, param="prompt")
        assert "0 for the completion" in error["message"]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_no_token_is_drawn_where_none_was_asked_for(
    client: httpx.AsyncClient, engine: ScriptedEngine, echo: bool, streams: bool
) -> None:
    body = text(prompt=["a", "b"], n=2, max_tokens=0, echo=echo, return_token_ids=True)
    if streams:
        parts = await stream(client, body, TEXT)
        assert [joined(parts, index) for index in range(4)] == (["a", "a", "b", "b"] if echo else [""] * 4)
        assert [endings(parts, index) for index in range(4)] == [["length"]] * 4
    else:
        choices = (await whole(client, body, TEXT))["choices"]
        assert [choice["text"] for choice in choices] == (["a", "a", "b", "b"] if echo else [""] * 4)
        assert all(choice["token_ids"] == [] and choice["finish_reason"] == "length" for choice in choices)
    assert all(request.sampling.max_tokens == 0 for request in engine.requests)


async def test_more_tokens_at_least_than_at_most_are_refused(client: httpx.AsyncClient) -> None:
    await refused(client, text(max_tokens=0, min_tokens=1), TEXT, param="min_tokens")


async def test_g_40_the_same_as_a_stream(client: httpx.AsyncClient) -> None:
    body = text(prompt="Your answer: Yes", max_tokens=0, echo=True, stream_options={"include_usage": True})
    parts = await stream(client, body, TEXT)
    assert joined(parts) == "Your answer: Yes"
    assert parts[-1]["usage"]["completion_tokens"] == 0
    assert parts[-2]["choices"][0]["finish_reason"] == "length"


async def test_g_41_streamed_offsets_rise_and_equal_those_of_the_whole_answer(client: httpx.AsyncClient) -> None:
    body = text(prompt="The cat", echo=True, logprobs=0)
    expected = (await whole(client, body, TEXT))["choices"][0]
    parts = await stream(client, body, TEXT)
    pieces = [chunk["choices"][0]["logprobs"] for chunk in parts if chunk["choices"][0]["logprobs"]]
    for name, values in expected["logprobs"].items():
        assert [value for piece in pieces for value in piece[name]] == values
    offsets = expected["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert joined(parts) == expected["text"]


async def test_g_42_echo_lists_prompt_and_completion(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    for said in ("three", "😊"):
        engine.script = says(model, said)
        answer = await whole(client, text(prompt="one two three", echo=True, logprobs=2, max_tokens=1), TEXT)
        assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"] + 1


@pytest.mark.parametrize("bos", [False, True])
async def test_g_79_echoed_tokens_join_to_the_text_and_offsets_point_into_it(bos: bool) -> None:
    model = text_model(bos=bos)
    engine = ScriptedEngine(model, says(model, " apples, ok"))
    async with scripted_client(engine, model) as client:
        answer = await whole(client, text(prompt="\n1. Carol has 20", echo=True, logprobs=1, max_tokens=5), TEXT)
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert choice["text"].startswith("\n1. Carol has 20")
    assert len(logprobs["tokens"]) == answer["usage"]["prompt_tokens"] + 5
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"].startswith(token, offset)


async def test_g_84_a_batch_is_scored_prompt_by_prompt(client: httpx.AsyncClient, model: TextModel) -> None:
    prompts = ["Q: 2+2? A: 4", "Q: 2+2? A: 5", "a", "Q: 1? A: 1"]
    body = text(prompt=prompts, echo=True, max_tokens=0, temperature=0, logprobs=10, seed=1234)
    answer = await whole(client, body, TEXT)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        ids = model.tokenizer.encode(prompt, add_special=False)
        expected = [None, *(logprob_of(token, 10).logprob for token in ids[1:])]
        assert choice["text"] == prompt
        assert choice["logprobs"]["token_logprobs"] == expected


async def test_every_choice_of_one_prompt_echoes_its_logprobs(client: httpx.AsyncClient) -> None:
    body = text(prompt="one", echo=True, logprobs=1, n=3, max_tokens=2)
    answer = await whole(client, body, TEXT)
    assert len({str(choice["logprobs"]) for choice in answer["choices"]}) == 1
    parts = await stream(client, body, TEXT)
    assert [joined(parts, index) for index in range(3)] == [choice["text"] for choice in answer["choices"]]


async def test_offsets_of_pieces_of_one_character_are_the_same(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "a😊b")
    answer = await whole(client, text(logprobs=0, max_tokens=32), TEXT)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, *[1] * (len(logprobs["tokens"]) - 2), 2]
    assert logprobs["tokens"][1].startswith("bytes:\\x")
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))


async def test_tokens_are_spelled_as_ids_on_request(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    fields = {"max_tokens": 1, "return_tokens_as_token_ids": True}
    assert entries(await whole(client, chat(logprobs=True, **fields)))[0]["token"] == "token_id:40"
    completion = await whole(client, text(logprobs=1, **fields), TEXT)
    assert completion["choices"][0]["logprobs"]["tokens"] == ["token_id:40"]


async def test_echo_of_ids_is_their_text(client: httpx.AsyncClient, model: TextModel) -> None:
    ids = model.tokenizer.encode("two words", add_special=False)
    answer = await whole(client, text(prompt=ids, echo=True, max_tokens=1), TEXT)
    assert answer["choices"][0]["text"] == "two wordsH"


async def test_minus_one_asks_for_as_many_alternatives_as_there_can_be(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(prompt_logprobs=-1, logprobs=True, top_logprobs=-1))
    assert {len(entry) for entry in answer["prompt_logprobs"][1:]} == {20}
    assert {len(entry["top_logprobs"]) for entry in answer["choices"][0]["logprobs"]["content"]} == {20}
    logprobs = (await whole(client, text(logprobs=-1, echo=True, prompt="a b"), TEXT))["choices"][0]["logprobs"]
    assert {len(top) for top in logprobs["top_logprobs"][1:]} <= {20, 21}
    await refused(client, chat(prompt_logprobs=-2), param="prompt_logprobs")
    await refused(client, text(logprobs=-2), TEXT, param="logprobs")


async def test_prompt_logprobs_list_one_map_for_each_prompt_token(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(prompt_logprobs=2))
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert all(len(entry) == 2 for entry in answer["prompt_logprobs"][1:])
    await refused(client, chat(prompt_logprobs=2, stream=True), param="prompt_logprobs")


async def test_best_of_returns_the_likeliest(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    likely, unlikely = 40, 47
    assert logprob_of(likely, 0).logprob > logprob_of(unlikely, 0).logprob
    engine.script = lambda request, index: [[likely if index == 2 else unlikely]] * 3
    answer = await whole(client, text(best_of=4, n=1, max_tokens=3), TEXT)
    assert [choice["text"] for choice in answer["choices"]] == [model.tokenizer.decode([likely] * 3)]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("fields", [{"best_of": 3, "n": 2, "stream": True}, {"best_of": 1, "n": 2}])
async def test_best_of_that_cannot_be_is_refused(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    await refused(client, text(**fields), TEXT, param="best_of")


@pytest.mark.parametrize("fields", [{"best_of": 2, "n": 2, "stream": True}, {"best_of": None}])
async def test_best_of_that_asks_for_nothing_is_accepted(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    answer = await client.post(TEXT, json=text(**fields))
    assert answer.status_code == 200
