"""Answers that must have a form, over HTTP and a small real engine."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, SchedulingConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from tests.fakes import make_settings
from tests.gateway.shapes import PERSON, SCHEMAS, fits
from tests.gateway.wire import CHAT, TEXT, Body, chat, data_lines, endings, joined, refused, stream, text, whole
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("structured") / "tiny", "llama")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=64),
        scheduling=SchedulingConfig(max_num_seqs=16),
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engine: EngineConnection, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(make_settings(), engine=engine, text=TextModel.load(directory))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=120) as client:
        yield client


pytestmark = pytest.mark.asyncio(loop_scope="module")


def schema_format(schema: Any, *, strict: bool = False) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}


def content(answer: Body, index: int = 0) -> str:
    choice = answer["choices"][index]
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
async def test_whatever_ends_by_itself_fits_its_schema(client: httpx.AsyncClient, schema: Any) -> None:
    num_whole = 0
    for seed in range(3):
        body = chat(response_format=schema_format(schema), max_tokens=200, seed=seed, temperature=0.7)
        answer = await whole(client, body)
        reason = answer["choices"][0]["finish_reason"]
        if reason == "length":
            assert answer["usage"]["completion_tokens"] == 200
            continue
        assert reason == "stop"
        num_whole += 1
        said = content(answer)
        assert said == said.strip()
        assert fits(json.loads(said), schema), said
    assert num_whole or schema is SCHEMAS["a recursive one (G-35)"]


FORMS: dict[str, tuple[Body, str]] = {
    "response_format": ({"response_format": {"type": "json_object"}}, r"\{.*\}"),
    "llama.cpp's schema": ({"response_format": {"type": "json_object", "schema": PERSON}}, r'\{\s*"name".*\}'),
    "structured json": ({"structured_outputs": {"json": PERSON}}, r'\{\s*"name".*\}'),
    "structured json text": ({"structured_outputs": {"json": json.dumps(PERSON)}}, r'\{\s*"name".*\}'),
    "structured regex": ({"structured_outputs": {"regex": "[ab]{3}!"}}, "[ab]{3}!"),
    "structured choice": ({"structured_outputs": {"choice": ["left (1)", "right"]}}, r"left \(1\)|right"),
    "structured grammar": ({"structured_outputs": {"grammar": 'start: "x" ("y" | "z")'}}, "x[yz]"),
    "structured gbnf": ({"structured_outputs": {"grammar": 'root ::= "x" ("y" | "z")'}}, "x[yz]"),
    "structured object": ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, r"\{.*\}"),
    "compact": (
        {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}},
        r'\{"name":"\w+","age":\d+\}',
    ),
    "tabs": (
        {"structured_outputs": {"json": PERSON, "whitespace_pattern": r"\t"}},
        r'\{\t?"name"\t?:\t?"\w+"[^\n ]*\}',
    ),
    "guided_json": ({"guided_json": PERSON}, r'\{\s*"name".*\}'),
    "guided_regex": ({"guided_regex": "[ab]{3}!"}, "[ab]{3}!"),
    "guided_choice": ({"guided_choice": ["left", "right"]}, "left|right"),
    "guided_grammar": ({"guided_grammar": 'start: "x" ("y" | "z")'}, "x[yz]"),
    "regex": ({"regex": "[ab]{3}!"}, "[ab]{3}!"),
    "ebnf": ({"ebnf": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
    "grammar": ({"grammar": 'root ::= "x" ("y" | "z")'}, "x[yz]"),
    "json_schema": ({"json_schema": json.dumps(PERSON)}, r'\{\s*"name".*\}'),
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "form"), FORMS.values(), ids=FORMS.keys())
async def test_every_name_for_a_form_is_enforced_on_both_endpoints(
    client: httpx.AsyncClient, fields: Body, form: str, path: str
) -> None:
    body = {**(chat() if path == CHAT else text()), **fields, "max_tokens": 150, "seed": 1}
    answer = await whole(client, body, path)
    if answer["choices"][0]["finish_reason"] == "stop":
        assert re.fullmatch(form, content(answer), re.DOTALL), content(answer)
    else:
        assert "object" in str(fields) or "Ann" in str(fields)  # JSON strings and indents may be long; the rest is not


async def test_choices_of_one_prompt_are_each_valid_and_a_stream_says_the_same(client: httpx.AsyncClient) -> None:
    body = chat(response_format=schema_format(PERSON), n=4, seed=11, temperature=1.3, max_tokens=200)
    answer = await whole(client, body)
    texts = [content(answer, index) for index in range(4)]
    for index, said in enumerate(texts):
        if answer["choices"][index]["finish_reason"] == "stop":
            assert fits(json.loads(said), PERSON)
    assert len(set(texts)) > 1
    parts = await stream(client, body)
    assert [joined(parts, index) for index in range(4)] == texts
    assert [endings(parts, index) for index in range(4)] == [[one["finish_reason"]] for one in answer["choices"]]


async def test_a_cut_answer_ends_with_length(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(response_format=schema_format(PERSON), max_tokens=3))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_limit_that_fits_exactly_is_no_cut(client: httpx.AsyncClient) -> None:
    body = chat(structured_outputs={"choice": ["exactly so many tokens"]})
    full = await whole(client, body)
    num_tokens = full["usage"]["completion_tokens"]
    answer = await whole(client, {**body, "max_tokens": num_tokens})
    assert (content(answer), answer["choices"][0]["finish_reason"]) == ("exactly so many tokens", "stop")
    shorter = await whole(client, {**body, "max_tokens": num_tokens - 1})
    assert shorter["choices"][0]["finish_reason"] == "length"
    assert "exactly so many tokens".startswith(content(shorter))


@pytest.mark.parametrize("streams", [False, True])
async def test_a_stop_string_cuts_forced_text(client: httpx.AsyncClient, streams: bool) -> None:
    body = chat(structured_outputs={"choice": ["one two three four"]}, stop=["three"])
    if streams:
        parts = await stream(client, body)
        said, reasons = joined(parts), endings(parts)
    else:
        answer = await whole(client, body)
        said, reasons = content(answer), [answer["choices"][0]["finish_reason"]]
    assert (said, reasons) == ("one two ", ["stop"])


async def test_log_probabilities_cover_every_token_of_forced_text(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(structured_outputs={"choice": ["one two"]}, logprobs=True, top_logprobs=2))
    entries = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "one two"
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_token_ids_of_forced_text_are_all_returned(client: httpx.AsyncClient) -> None:
    body = chat(structured_outputs={"choice": ["one two"]}, return_token_ids=True)
    answer = await whole(client, body)
    ids = answer["choices"][0]["token_ids"]
    assert len(ids) == answer["usage"]["completion_tokens"]
    streamed = [chunk["choices"][0].get("token_ids", []) for chunk in await stream(client, body) if chunk["choices"]]
    assert [token_id for part in streamed for token_id in part] == ids


async def test_parameters_that_leave_nothing_fail_the_request_rather_than_free_it(client: httpx.AsyncClient) -> None:
    body = chat(structured_outputs={"choice": ["zzz"]}, allowed_token_ids=[5])
    error = await refused(client, body, param="structured_outputs.choice")
    assert "cannot be followed" in error["message"]
    assert content(await whole(client, chat(structured_outputs={"choice": ["yes"]}))) == "yes"


async def test_g_34_json_mode_has_no_runs_of_whitespace(client: httpx.AsyncClient) -> None:
    for seed in range(8):
        body = chat(response_format={"type": "json_object"}, max_tokens=80, temperature=1.5, seed=seed)
        answer = await whole(client, body)
        bare = re.sub(r'"(\\.|[^"\\])*("|$)', '""', content(answer), flags=re.DOTALL)
        assert re.search(r"\n\s*\n| {17}|\t|[^\n ] {2}", bare) is None, content(answer)
        if answer["choices"][0]["finish_reason"] == "stop":
            assert isinstance(json.loads(content(answer)), dict)
            assert content(answer).rstrip() == content(answer)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_form_that_becomes_too_dear_on_the_way_ends_its_request_and_says_so(
    client: httpx.AsyncClient, streams: bool
) -> None:
    body = chat(guided_regex="(a|b|ab)*c{1000}(a?){500}a{500}", max_tokens=200, temperature=0, stream=streams)
    answer = await client.post(CHAT, json=body)
    error = json.loads(data_lines(answer.text)[-2])["error"] if streams else answer.json()["error"]
    assert answer.status_code == (200 if streams else 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", "guided_regex")
    assert content(await whole(client, chat(structured_outputs={"choice": ["yes"]}))) == "yes"


async def test_g_36_plain_answers_are_the_same_before_and_after_a_constrained_one(client: httpx.AsyncClient) -> None:
    plain = chat(temperature=0)
    before = content(await whole(client, plain))
    await whole(client, chat(response_format={"type": "json_object"}))
    assert content(await whole(client, plain)) == before


def nested(levels: int) -> Body:
    schema: Body = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def one_of(levels: int) -> Any:
    if not levels:
        return {"type": "string"}
    return {"oneOf": [{"type": "object", "properties": {f"k{at}": one_of(levels - 1)}} for at in range(6)]}


REFUSED: dict[str, tuple[Body, str]] = {
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    "an unknown type": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "a schema that is text": ({"response_format": schema_format("x")}, "response_format.json_schema.schema"),
    "G-30 a subschema that is text": (
        {"response_format": schema_format({"type": "object", "properties": {"a": "bar"}})},
        "response_format.json_schema.schema",
    ),
    "G-31 an unclosed pattern": (
        {"response_format": schema_format({"type": "string", "pattern": "^(unclosed"}, strict=True)},
        "response_format.json_schema.schema",
    ),
    "64 levels": ({"response_format": schema_format(nested(64))}, "response_format.json_schema.schema"),
    "an unsupported keyword": (
        {"response_format": schema_format({"type": "array", "uniqueItems": True}, strict=True)},
        "response_format.json_schema.schema",
    ),
    "G-33 a schema too long": ({"response_format": schema_format(one_of(5))}, "response_format.json_schema.schema"),
    "a bad regex": ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    "a long regex": ({"guided_regex": "a" * 20_000}, "guided_regex"),
    "a nested regex": ({"guided_regex": "(" * 3000 + "a" + ")" * 3000}, "guided_regex"),
    "no choices": ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    "a choice that is no text": ({"guided_choice": [1]}, "guided_choice[0]"),
    "an empty choice": ({"guided_choice": [""]}, "guided_choice"),
    "a bad grammar": ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar"),
    "two forms": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
    "two fields": (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["b"]}},
        "structured_outputs",
    ),
    "structural tags": ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag"),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_enforced_is_a_400_that_names_the_field(
    client: httpx.AsyncClient, fields: Body, param: str, streams: bool
) -> None:
    error = await refused(client, chat(**fields, stream=streams), param=param)
    assert "uniqueItems" in error["message"] or "uniqueItems" not in str(fields)
    assert f"'{param}'" in error["message"] or "lacks" in error["message"] or "together" in error["message"], error


def function(name: str, schema: Body, *, strict: bool = True) -> Body:
    return {"name": name, "parameters": {"type": "object", "properties": {"a": schema}}, "strict": strict}


UNFIT = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("streams", [False, True])
async def test_of_several_tools_the_one_whose_schema_cannot_be_enforced_is_named(
    client: httpx.AsyncClient, choice: str, streams: bool
) -> None:
    functions = [function("f", {"type": "string"}), function("g", UNFIT), function("h", {"type": "integer"})]
    fields: Body = {"tool_choice": choice, "stream": streams}
    tools = [{"type": "function", "function": one} for one in functions]
    error = await refused(client, chat(tools=tools, **fields), param="tools[1].function.parameters")
    assert "'tools[1].function.parameters'" in error["message"]
    assert "uniqueItems" in error["message"]
    asked = {"input": "hi", "tools": [{"type": "function", **one} for one in functions], **fields}
    error = await refused(client, asked, "/v1/responses", param="tools[1].parameters")
    assert "'tools[1].parameters'" in error["message"]
    tools[1]["function"] = function("g", nested(80))
    await refused(client, chat(tools=tools, **fields), param="tools[1].function.parameters")


async def test_a_form_of_a_response_is_blamed_by_its_own_name(client: httpx.AsyncClient) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "array", "uniqueItems": True}, "strict": True}
    error = await refused(
        client, {"input": "hi", "text": {"format": form}}, "/v1/responses", param="text.format.schema"
    )
    assert "'text.format.schema'" in error["message"]
    tools = [{"type": "function", **function("f", {"type": "string"})}]
    asked = {"input": "hi", "tools": tools, "tool_choice": {"type": "function"}}
    error = await refused(client, asked, "/v1/responses", param="tool_choice.name")
    assert "'tool_choice.name'" in error["message"]


async def test_g_32_thousands_of_levels_are_a_400(client: httpx.AsyncClient) -> None:
    deep = '{"type":"object","properties":{"a":' * 3000 + "{}" + "}}" * 3000
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"guided_json":{deep}}}'
    answer = await client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    as_text = await client.post(CHAT, json=chat(guided_json=deep))
    assert (as_text.status_code, as_text.json()["error"]["param"]) == (400, "guided_json")


async def test_other_streams_are_undisturbed_by_bombs(client: httpx.AsyncClient) -> None:
    bodies = [chat(seed=seed, temperature=1.0, max_tokens=60, ignore_eos=True) for seed in range(4)]
    bodies += [chat(response_format=schema_format(PERSON), seed=seed, max_tokens=60) for seed in range(4)]
    expected = [joined(await stream(client, body)) for body in bodies]
    bombs = [
        chat(guided_json={"type": "integer", "multipleOf": 99_999_989}),
        chat(response_format=schema_format({"$defs": {"a": {"$ref": "#/$defs/b"}}, "$ref": "#/$defs/a"})),
        chat(guided_regex="(" * 500),
    ]
    refusing = [asyncio.create_task(refused(client, bomb)) for bomb in bombs]
    running = await asyncio.gather(*(stream(client, body) for body in bodies))
    assert [joined(parts) for parts in running] == expected
    await asyncio.gather(*refusing)


async def test_a_client_that_leaves_while_its_schema_is_compiled_leaves_nothing_behind(
    client: httpx.AsyncClient, engine: EngineConnection
) -> None:
    bomb = chat(guided_json={"type": "integer", "multipleOf": 99_999_971})
    waiting = asyncio.create_task(client.post(CHAT, json=bomb))
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert content(await whole(client, chat(structured_outputs={"choice": ["yes"]}))) == "yes"
    deadline_s = time.monotonic() + 60
    while engine.stats.num_running or engine.stats.num_waiting:  # told once a second
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
