"""What is refused and what is not (cases of table F)."""

from __future__ import annotations

import asyncio
import codecs
import json
from typing import Any

import httpx
import msgspec
import pytest

from engine.request import GenerationDefaults
from engine.text.model import TextModel
from gateway.schemas.base import MAX_SEARCHED_BYTES, WireModel
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.messages import FunctionCall, Message, ToolCall
from gateway.schemas.responses import InputTokensRequest, ResponseRequest
from gateway.schemas.sampling import StreamOptions
from gateway.schemas.structured import JsonSchemaFormat, ResponseFormat, StructuredOutputs
from gateway.schemas.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from gateway.schemas.tools import FunctionDefinition, Tool
from tests.fakes import MODEL, ScriptedEngine, repeats, scripted_client, text_model
from tests.gateway.wire import CHAT, TEXT, chat, error_of, refused, stream, text, whole

CALL = {"function": {"name": "f"}}


async def post_raw(client: httpx.AsyncClient, raw: bytes, path: str = CHAT) -> httpx.Response:
    return await client.post(path, content=raw, headers={"content-type": "application/json"})


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "-0.5", "2.5", "1e999", '"1"', "true", "[1]"])
async def test_g_43_a_temperature_that_is_no_number_in_range_is_refused(
    client: httpx.AsyncClient, literal: str
) -> None:
    raw = json.dumps(chat(temperature=12345)).replace("12345", literal).encode()
    error = error_of(await post_raw(client, raw), 400)
    assert error["param"] == "temperature"
    assert error["type"] == "invalid_request_error"
    assert error["code"] != "invalid_json"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ('{"logit_bias":{"1":%s},"temperature":%s}', "logit_bias.1"),
        ('{"stop":["a",%s],"messages":[]}', "stop[1]"),
        ('{"unknown":{"deep":[[1],[0,%s]]}}', "unknown.deep[1][1]"),
        ('{"messages":[{"role":"user","content":"NaN"}],"tools":[{"function":{"parameters":{"maximum":%s}}}]}',
         "tools[0].function.parameters.maximum"),
    ],
)  # fmt: skip
async def test_g_43_the_first_value_that_is_no_number_is_named_wherever_it_is(
    client: httpx.AsyncClient, literal: str, raw: str, param: str
) -> None:
    error = error_of(await post_raw(client, raw.replace("%s", literal).encode()), 400)
    assert error["param"] == param
    assert literal in error["message"]


@pytest.mark.parametrize(
    "bias",
    [
        {"V+7": 5},
        {"-1": 1},
        {"foo": 1},
        {"1_0": 1},
        {" 5 ": 1},
        {"+5": 1},
        {"05": 1},
        {"\u0663": 1},
        {"5.0": 1},
        {"": 1},
        {"1" * 400: 1},
    ],
)
async def test_g_44_a_bias_on_unknown_ids_is_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine, bias: dict[str, int]
) -> None:
    vocab_size = engine.info.vocab_size
    await refused(
        client,
        chat(logit_bias={key.replace("V+7", str(vocab_size + 7)): value for key, value in bias.items()}),
        param="logit_bias",
    )
    assert engine.requests == []


async def test_bias_values_are_clamped_and_their_number_is_bounded(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    await whole(client, chat(logit_bias={"5": 1000, "6": -1e9}))
    assert engine.last.sampling.logit_bias == {5: 100.0, 6: -100.0}
    async with scripted_client(engine, model, max_logit_bias=2) as strict:
        await refused(strict, chat(logit_bias={"1": 1, "2": 1, "3": 1}), param="logit_bias")


async def test_g_45_an_unknown_stop_id_is_refused_while_others_run(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda request, index: [[40], 0.05, [41]]
    others = [asyncio.create_task(whole(client, chat())) for _ in range(4)]
    await refused(client, chat(stop_token_ids=[engine.info.vocab_size], min_tokens=1), param="stop_token_ids")
    assert all(answer["choices"][0]["finish_reason"] == "stop" for answer in await asyncio.gather(*others))


@pytest.mark.parametrize("top_p", [1.0, 1, 0, 0.5])
async def test_g_46_every_top_p_from_0_to_1_is_taken(
    client: httpx.AsyncClient, engine: ScriptedEngine, top_p: float
) -> None:
    await whole(client, chat(top_p=top_p))
    assert engine.last.sampling.top_p == top_p


async def test_g_47_null_means_not_given(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    names = (
        "seed max_tokens stop tools tool_choice top_logprobs response_format stream_options logit_bias n temperature "
        "stream metadata parallel_tool_calls logprobs user service_tier min_p top_k chat_template_kwargs priority"
    )
    await whole(client, chat(**dict.fromkeys(names.split())))
    nulls = engine.last
    await whole(client, {"messages": chat()["messages"]})
    assert nulls.sampling == engine.last.sampling


NESTED: list[tuple[type[WireModel], dict[str, Any]]] = [
    (ChatRequest, {"messages": [{"role": "user", "content": "a"}]}),
    (CompletionRequest, {"prompt": "a"}),
    (ResponseRequest, {"input": "a"}),
    (InputTokensRequest, {"input": "a"}),
    (TokenizeTextRequest, {"prompt": "a"}),
    (TokenizeChatRequest, {"messages": [{"role": "user", "content": "a"}]}),
    (StreamOptions, {}),
    (StructuredOutputs, {}),
    (ResponseFormat, {}),
    (JsonSchemaFormat, {"schema": {}}),
    (Message, {"role": "assistant"}),
    (ToolCall, {"function": {"name": "f"}}),
    (FunctionCall, {"name": "f"}),
    (Tool, {"type": "function", "function": {"name": "f"}}),
    (FunctionDefinition, {"name": "f"}),
]


@pytest.mark.parametrize(("model", "body"), NESTED, ids=[model.__name__ for model, _ in NESTED])
def test_g_47_g_81_null_means_not_given_in_any_field_of_any_object(
    model: type[WireModel], body: dict[str, Any]
) -> None:
    names = {field.alias or name for name, field in model.model_fields.items()} | model.unsupported.keys()
    nulls = dict.fromkeys(names - body.keys())
    # Input items get ids of their own.
    given, omitted = (model.model_validate(one).model_dump(exclude={"input"}) for one in ({**nulls, **body}, body))
    assert given == omitted


@pytest.mark.parametrize("raw", [b'"x"', b"[1]", b"7", b"null", b"", b"true"])
@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
async def test_g_48_a_body_that_is_no_object_is_refused(client: httpx.AsyncClient, raw: bytes, path: str) -> None:
    assert error_of(await post_raw(client, raw, path), 400)["code"] == "invalid_json"


@pytest.mark.parametrize("raw", [b'{"model":"M","messages":[}', b"{'a':1}", b'{"a":1}x', b"\xff\xfe", b"{" * 100_000])
async def test_g_49_broken_json_is_refused_in_the_error_shape(client: httpx.AsyncClient, raw: bytes) -> None:
    assert error_of(await post_raw(client, raw), 400)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": {"content": 5}}, "prediction.content"),
        ({"prediction": {"content": [{"type": "text"}]}}, "prediction.content[0].text"),
        ({"prediction": {"content": [{"type": "text", "text": "a"}, 5]}}, "prediction.content[1]"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"metadata": {"str": 5}}, "metadata.str"),
    ],
)
async def test_a_field_of_several_types_is_named_without_the_types(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    await refused(client, chat(**fields), param=param)


async def test_a_byte_order_mark_before_a_body_is_ignored(client: httpx.AsyncClient) -> None:
    raw = codecs.BOM_UTF8 + json.dumps(chat()).encode()
    assert (await post_raw(client, raw)).status_code == 200


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
async def test_a_body_that_is_not_utf_8_is_told_so(client: httpx.AsyncClient, encoding: str) -> None:
    raw = json.dumps(chat(messages=[{"role": "user", "content": "\xe9"}]), ensure_ascii=False).encode(encoding)
    error = error_of(await post_raw(client, raw), 400)
    assert "UTF-8" in error["message"]
    assert error["code"] == "invalid_json"


@pytest.mark.parametrize("inside", [b'{"a":', b"[", b'{"a":[{"]}":'])
async def test_g_32_what_is_nested_too_deep_to_be_read_is_refused_by_its_field(
    client: httpx.AsyncClient, inside: bytes
) -> None:
    raw = b'{"model":"{\\"[","messages":[{"a":{}}],"response_format":' + inside * 3_000
    assert error_of(await post_raw(client, raw), 400)["param"] == "response_format"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [(TEXT, text(prompt=""), "prompt"), (TEXT, text(prompt=[]), "prompt"), (CHAT, chat(messages=[]), "messages")],
)
async def test_g_50_an_empty_prompt_is_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    await refused(client, body, path, param=param)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (["a", ""], "prompt[1]"),
        ([[1], [2**30]], "prompt[1][0]"),
        ([1, 2**30], "prompt[1]"),
        (["a", "x" * 1_000_000], "prompt[1]"),
        (["a", "b", "x" * 4092, "c"], "prompt[2]"),
        ([[5], [5] * 4092], "prompt[1]"),
        (["x" * 4092], "prompt"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"echo": True}, {"stream": True}])
async def test_of_several_prompts_the_one_at_fault_is_named(
    client: httpx.AsyncClient, prompt: list[Any], param: str, more: dict[str, Any]
) -> None:
    await refused(client, text(prompt=prompt, **more), TEXT, param=param)


async def test_g_50_an_empty_prompt_is_the_opening_token_where_there_is_one() -> None:
    model = text_model(bos=True)
    engine = ScriptedEngine(model, repeats(40))
    async with scripted_client(engine, model) as client:
        await whole(client, text(prompt=""), TEXT)
    assert engine.last.prompt_ids == [model.tokenizer.bos_token_id]


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (r'{"messages":[],"\ud83d":1}', r"\ud83d"),
        (r'{"messages":[],"metadata":{"a":"b","x\udc00y":"v"}}', r"metadata.x\udc00y"),
        (r'{"messages":[{"role":"user","a\ud800":NaN}]}', r"messages[0].a\ud800"),
    ],
)
async def test_g_51_an_unpaired_surrogate_in_a_name_is_refused_naming_its_path(
    client: httpx.AsyncClient, raw: str, param: str
) -> None:
    error = error_of(await post_raw(client, raw.encode()), 400)
    assert error["param"] == param
    assert error["code"] is None


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (r'[{"role":"user","content":"emoji \ud83d"}]', "messages[0].content"),
        (r'[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"\udc00"}]}]', None),
    ],
)
async def test_g_51_an_unpaired_surrogate_is_refused_naming_the_message(
    client: httpx.AsyncClient, messages: str, param: str | None
) -> None:
    error = error_of(await post_raw(client, f'{{"messages":{messages}}}'.encode()), 400)
    assert error["param"] == (param or "messages[1].content[0].text")
    assert error["param"] in error["message"]


async def test_g_52_the_seed_and_the_number_of_choices_reach_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    await whole(client, chat(n=3, seed=-7, temperature=1.5, ignore_eos=True))
    assert (engine.last.n, engine.last.sampling.seed) == (3, -7)
    assert engine.last.sampling.ignore_eos


@pytest.mark.parametrize("fields", [{"temperature": 1e-9}, {"temperature": 0.0001, "top_p": 0.0001}])
async def test_g_80_a_tiny_temperature_is_greedy(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, float]
) -> None:
    await whole(client, chat(**fields))
    assert engine.last.sampling.is_greedy


async def test_g_81_null_means_not_given_for_text_completions(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    names = "max_tokens suffix logprobs stop echo best_of n stream user logit_bias"
    await whole(client, text(**dict.fromkeys(names.split())), TEXT)
    assert engine.last.sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"min_tokens": 33}, "min_tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**9]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["ok", "word " * 1000]}, "bad_words[1]"),
        ({"bad_words": ["x" * 1000] * 17}, "bad_words"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
        ({"chat_template_kwargs": dict.fromkeys(map(str, range(1025)), 1)}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 1025}]},
            "messages[0].tool_calls",
        ),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"allowed_token_ids": [1] * (2**20 + 1)}, "allowed_token_ids"),
        ({"logit_bias": {str(number): 1 for number in range(65_537)}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "a"}] * 5000}, "messages"),
        ({"messages": [{"role": "user", "content": "a", **dict.fromkeys(map(str, range(1024)), 1)}]}, "messages[0]"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 2**63}, "priority"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ],
)
async def test_values_out_of_range_are_refused_by_name(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str | None
) -> None:
    await refused(client, chat(**fields), param=param)
    assert engine.requests == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template", "{{ messages }}"),
        ("modalities", ["audio"]),
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("moderation", {"model": "omni-moderation-latest"}),
        ("thinking_token_budget", 5),
        ("return_hidden_states", True),
        ("logprob_token_ids", [1, 2]),
        ("logits_processors", ["x"]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_what_would_change_the_meaning_is_refused_not_ignored(
    client: httpx.AsyncClient, name: str, value: object, streams: bool
) -> None:
    error = await refused(client, chat(**{name: value}, stream=streams), param=name)
    assert error["code"] == "unsupported_parameter"


async def test_prompts_that_are_no_text_are_refused(client: httpx.AsyncClient) -> None:
    error = await refused(client, text(prompt_embeds="AAAA"), TEXT, param="prompt_embeds")
    assert error["code"] == "unsupported_parameter"


async def test_fields_that_ask_for_nothing_are_accepted(client: httpx.AsyncClient) -> None:
    await whole(
        client,
        chat(
            response_format={"type": "text"},
            modalities=["text"],
            functions=[],
            function_call="none",
            prediction={"type": "content", "content": "x"},
            store=True,
            metadata={"a": "b"},
            user="u",
            safety_identifier="s",
            prompt_cache_key="k",
            service_tier="auto",
            verbosity="low",
            unknown_field={"deep": [1, 2, {"x": None}]},
        ),
    )


SOURCE = "async def main(request, lm):\n    return 'x'\n"
MISSPELT: dict[str, dict[str, Any]] = {
    "extension.limit": {"extension": {"source": SOURCE, "limit": {"wall_s": 1}}},
    "extension.arg": {"extension": {"source": SOURCE, "arg": {"n": 1}}},
    "extension.detach": {"extension": {"source": SOURCE, "detach": True}},
    "extension.strictpath": {"extension": {"source": SOURCE, "strictpath": "device"}},
    "extension.sorce": {"extension": {"sorce": SOURCE}},
    "prefix.on_mis": {"prefix": {"name": "p", "on_mis": "fail"}},
    "retention.ttl": {"retention": {"ttl_s": 5, "ttl": 60}},
}


@pytest.mark.parametrize("param", MISSPELT)
@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/responses"])
async def test_a_misspelt_field_of_an_object_of_our_own_is_refused(
    client: httpx.AsyncClient, path: str, param: str
) -> None:
    body = {CHAT: chat(), TEXT: text()}.get(path, {"input": "hi", "store": False})
    error = await refused(client, {**body, **MISSPELT[param]}, path, param=param)
    assert error["code"] == "unknown_parameter"
    assert f"'{param}'" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(drafter={"type": "prompt_lookup", "max_token": 3}), "drafter.max_token"),
        (TEXT, text(drafter={"type": "prompt_lookup", "max_token": 3}), "drafter.max_token"),
        ("/v1/prefixes", {"name": "p", "input": "hi", "ttl_s": 60}, "ttl_s"),
        ("/v1/prefixes", {"name": "p", "program": {"source": SOURCE, "limit": {}}}, "program.limit"),
        ("/v1/prefixes/pfx_1", {"visible": "tenant"}, "visible"),
        ("/v1/extensions", {"source": SOURCE, "name": "x"}, "name"),
        ("/v1/extensions/check", {"source": SOURCE, "name": "x"}, "name"),
        ("/v1/tools/weather/test", {"argument": {"city": "x"}}, "argument"),
    ],
)
async def test_what_is_ours_alone_takes_no_unknown_names(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    assert (await refused(client, body, path, param=param))["code"] == "unknown_parameter"


async def test_objects_that_others_have_defined_may_have_fields_we_do_not_know(client: httpx.AsyncClient) -> None:
    await whole(
        client,
        chat(
            structured_outputs={"choice": ["a", "b"], "_backend": "x"},
            response_format={"type": "text", "of_tomorrow": 1},
            prediction={"type": "content", "content": "x", "of_tomorrow": 1},
            tools=[{"type": "function", "function": {"name": "f", "of_tomorrow": 1}, "of_tomorrow": 1}],
        ),
    )


async def test_a_body_of_countless_fields_is_refused(client: httpx.AsyncClient) -> None:
    error = await refused(client, chat(**dict.fromkeys(map(str, range(1024)), 1)))
    assert error["param"] is None
    assert "1024 fields" in error["message"]


async def test_the_faulty_field_of_a_very_long_body_is_not_searched_for(client: httpx.AsyncClient) -> None:
    raw = json.dumps(chat(temperature=12345, pad="x" * MAX_SEARCHED_BYTES)).replace("12345", "NaN").encode()
    assert error_of(await post_raw(client, raw), 400)["code"] == "invalid_json"


async def test_model_may_be_left_out(client: httpx.AsyncClient) -> None:
    answer = await whole(client, {"messages": chat()["messages"]})
    assert answer["model"] == MODEL


async def test_stream_options_pass_where_the_operator_is_lenient(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model, lenient_stream_options=True) as client:
        await whole(client, chat(stream_options={"include_usage": True}))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([1, "a"], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], [2, "a"]], "prompt[1][1]"),
        ([[1], [True]], "prompt[1][0]"),
        ([None], "prompt[0]"),
        ([[]], "prompt[0]"),
        ([2**70], "prompt[0]"),
        ([[1], [5, 10**400]], "prompt[1][1]"),
        ([[1], []], "prompt[1]"),
        ([10**9], "prompt[0]"),
        ([[1], [10**9]], "prompt[1][0]"),
        ([-1], "prompt[0]"),
        ({}, "prompt"),
        ([1.5], "prompt[0]"),
        ([True], "prompt[0]"),
    ],
)
async def test_prompts_that_are_none_are_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine, prompt: object, param: str
) -> None:
    await refused(client, text(prompt=prompt), TEXT, param=param)
    assert not engine.streams


BEYOND = [2**31, 2**63, 2**64, 2**70, 10**400, -(2**63) - 1, -(2**64), -(10**400)]


def _shapes(number: int) -> list[object]:
    return [number, [number], [[number]], {"1": number}, {str(number): 1}]


@pytest.mark.parametrize("number", BEYOND, ids=lambda number: f"{number:.0e}" if abs(number) < 1e300 else "huge")
@pytest.mark.parametrize(
    ("path", "fields_of", "body"),
    [
        (CHAT, ChatRequest, chat()),
        (TEXT, CompletionRequest, text()),
        ("/tokenize", TokenizeTextRequest, {"prompt": "a"}),
        ("/detokenize", DetokenizeRequest, {"tokens": [1]}),
    ],
)
async def test_no_number_is_too_large_for_a_clean_answer(
    client: httpx.AsyncClient, path: str, fields_of: type[WireModel], body: dict[str, Any], number: int
) -> None:
    for name in sorted({*fields_of.model_fields, *fields_of.unsupported}):
        for value in _shapes(number):
            answer = await client.post(path, json={**body, name: value})
            if answer.status_code != 200:
                error = error_of(answer, 404 if name == "model" and answer.status_code == 404 else 400)
                is_limit = error["code"] == "context_length_exceeded"
                assert is_limit or (error["param"] or "").startswith(name), (name, error)
                assert len(error["message"]) < 500


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_far_beyond_the_context_is_refused_in_short(client: httpx.AsyncClient, name: str) -> None:
    error = await refused(client, chat(**{name: 2**63 - 1}), param="messages")
    assert error["code"] == "context_length_exceeded"
    error = await refused(client, chat(**{name: 10**400}), param=name)
    assert len(error["message"]) < 200


async def test_sampling_left_open_is_what_the_model_recommends(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    defaults = GenerationDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1)
    engine._info = msgspec.structs.replace(engine.info, defaults=defaults)
    await whole(client, chat())
    sampling = engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.9, 20)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)
    await whole(client, chat(temperature=0, top_p=1, top_k=-1, min_p=0, repetition_penalty=1))
    sampling = engine.last.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 1, 0)
    assert (sampling.min_p, sampling.repetition_penalty) == (0, 1)


async def test_output_may_fill_the_context_if_no_limit_is_given(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    await whole(client, {"messages": chat()["messages"]})
    request = engine.last
    assert request.sampling.max_tokens + len(request.prompt_ids) == engine.info.limit_tokens
    await whole(client, {**chat(max_tokens=5), "max_completion_tokens": 9})
    assert engine.last.sampling.max_tokens == 9


@pytest.mark.parametrize(("keep", "num_tokens"), [(3, 3), (10_000, 20), (-1, 20)])
async def test_a_prompt_is_truncated_from_its_beginning(
    client: httpx.AsyncClient, engine: ScriptedEngine, keep: int, num_tokens: int
) -> None:
    await whole(client, chat())
    ids = engine.last.prompt_ids
    await whole(client, chat(truncate_prompt_tokens=keep))
    assert engine.last.prompt_ids == ids[-num_tokens:]


@pytest.mark.parametrize(("side", "kept"), [("left", [4, 5]), ("right", [2, 3])])
async def test_a_prompt_is_truncated_on_the_side_that_is_named(
    client: httpx.AsyncClient, engine: ScriptedEngine, side: str, kept: list[int]
) -> None:
    fields = {"truncate_prompt_tokens": 2, "truncation_side": side}
    await whole(client, text(prompt=[2, 3, 4, 5], **fields), TEXT)
    assert engine.last.prompt_ids == kept
    await whole(client, chat(truncate_prompt_tokens=None))
    everything = engine.last.prompt_ids
    await whole(client, chat(**fields))
    assert engine.last.prompt_ids == (everything[-2:] if side == "left" else everything[:2])
    await refused(client, chat(**{**fields, "truncation_side": "middle"}), param="truncation_side")


async def test_truncation_makes_an_overlong_prompt_fit(engine: ScriptedEngine, model: TextModel) -> None:
    small = ScriptedEngine(model, repeats(40), max_model_len=64)
    async with scripted_client(small, model) as client:
        await refused(client, text(prompt="x" * 60), TEXT, param="prompt")
        await whole(client, text(prompt="x" * 60, truncate_prompt_tokens=-1), TEXT)
    assert len(small.last.prompt_ids) == 64 - 8


@pytest.mark.parametrize("given", [None, True, False])
async def test_the_opening_token_is_added_to_text_by_default_and_to_conversations_on_request(
    given: bool | None,
) -> None:
    model = text_model(bos=True, template="{{ messages[0].content }}")
    engine = ScriptedEngine(model, repeats(40))
    fields: dict[str, Any] = {} if given is None else {"add_special_tokens": given}
    ids = model.tokenizer.encode("hi", add_special=False)
    opened = [model.tokenizer.bos_token_id, *ids]
    async with scripted_client(engine, model) as client:
        await whole(client, text(**fields), TEXT)
        assert engine.last.prompt_ids == (ids if given is False else opened)
        await whole(client, chat(**fields))
        assert engine.last.prompt_ids == (opened if given else ids)
        tokenized = (await client.post("/tokenize", json={"messages": chat()["messages"], **fields})).json()
        assert tokenized["tokens"] == (opened if given else ids)


async def test_extras_reach_the_engine(client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel) -> None:
    parts = await stream(
        client,
        chat(
            top_k=7,
            min_p=0.25,
            repetition_penalty=1.5,
            presence_penalty=1,
            frequency_penalty=-1,
            min_tokens=2,
            bad_words=["quick"],
            allowed_token_ids=list(range(300)),
            stop_token_ids=[3],
            cache_salt="mine",
            priority=-3,
        ),
    )
    assert parts
    request, sampling = engine.last, engine.last.sampling
    assert (request.salt, request.priority) == ("mine", -3)
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (7, 0.25, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.min_tokens) == (1, -1, 2)
    assert sampling.stop_token_ids == (3,)
    assert sampling.allowed_token_ids == tuple(range(300))
    assert {model.tokenizer.decode(word) for word in sampling.bad_words} == {"quick", " quick"}
