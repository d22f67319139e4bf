"""Requests that once broke a server of this kind, with the status each must get; numbered as the case log does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.gateway.responses.wire import RESPONSES, ask
from tests.gateway.wire import CHAT, TEXT, Body, chat, text

BEYOND_VOCABULARY = 2**20
"""An id that no small model has."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    Attributes:
        id: Of the case, with a number where it has several requests.
        status: What must come back.
        body: JSON, or raw bytes; None for a request without one.
        path, method: Where it goes.
        param: Named by the refusal.
        says: The text of the answer.
        headers: More of them.
    """

    id: str
    status: int
    body: Body | bytes | None
    path: str = CHAT
    method: str = "POST"
    param: str | None = None
    says: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def _numbered(case: str, *requests: Case) -> list[Case]:
    return [replace(one, id=f"{case}-{number}") for number, one in enumerate(requests, start=1)]


def _body(path: str, fields: Body) -> Body:
    make = {CHAT: chat, TEXT: text, RESPONSES: ask}[path]
    return make(**({"max_output_tokens": 16} if path == RESPONSES else {}), **fields)


def taken(path: str = CHAT, **fields: Any) -> Case:
    """A small request that must be answered."""
    return Case("", 200, _body(path, fields), path)


def forced(answer: str, says: str, path: str = CHAT, **fields: Any) -> list[Case]:
    """A text that does not depend on the model, whole and as a stream."""
    form = {"structured_outputs": {"choice": [answer]}, "max_tokens": 64, **fields}
    return [replace(taken(path, stream=streams, **form), says=says) for streams in (False, True)]


def turned_down(param: str | None, path: str = CHAT, **fields: Any) -> Case:
    """A small request that must be refused."""
    return Case("", 400, _body(path, fields), path, param=param)


def raw(body: bytes, param: str | None = None, path: str = CHAT) -> Case:
    """A body that is no valid request."""
    return Case("", 400, body, path, param=param)


def _literal(name: str, value: str) -> bytes:
    return json.dumps(chat(**{name: 12345})).replace("12345", value).encode()


_SCHEMA_PARAM = "response_format.json_schema.schema"


def _schema(schema: object, **fields: object) -> Body:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}}


def _one_of(levels: int) -> Body:
    if not levels:
        return {"type": "string"}
    return {"oneOf": [{"type": "object", "properties": {f"k{at}": _one_of(levels - 1)}} for at in range(6)]}


_NODE: Body = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["v", "kids"],
    "additionalProperties": False,
}
_PATTERN: Body = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^(unclosed"}},
    "required": ["a"],
}
_DEEP = (
    b'{"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":'
    b'{"name":"x","schema":' + b'{"type":"object","properties":{"a":' * 3_000 + b"{}" + b"}}" * 3_000 + b"}}}"
)
_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
_TOOL: Body = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_LIGHT: Body = {
    "type": "function",
    "function": {
        "name": "set_light",
        "parameters": {
            "type": "object",
            "properties": {
                "on": {"type": "boolean"},
                "room": {"type": ["string", "null"], "maxLength": 8},
                "rgb": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                "meta": {"type": "object", "properties": {"k": {"type": "string"}}, "additionalProperties": False},
            },
            "required": ["on", "room", "rgb", "meta"],
            "additionalProperties": False,
        },
    },
}
_NAMED: Body = {"type": "function", "function": {"name": "get_weather"}}
_NAMED_FLAT: Body = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
_USER = {"role": "user", "content": "w?"}
_ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
_NULLS: Body = {
    **dict.fromkeys(("seed", "max_tokens", "stop", "tools", "tool_choice", "top_logprobs", "response_format")),
    **dict.fromkeys(("stream_options", "logit_bias", "n")),
}
_TEXT_NULLS: Body = dict.fromkeys(("max_tokens", "suffix", "logprobs", "stop", "echo", "best_of"))
_RESPONSE_NULLS: Body = dict.fromkeys(("tools", "temperature", "metadata", "max_output_tokens", "previous_response_id"))
_FULL_LENGTH: Body = {"ignore_eos": True, "max_tokens": 7, "stream_options": {"include_usage": True}}
_SPACEMAN = "ok 👩\u200d🚀🚀 done"
_PREFLIGHT = {
    "origin": "http://pages.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
_REPLAYED = [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "bye"}]},
]

CASES = [
    *_numbered("G-01", taken(stream=True)),
    *_numbered("G-02", taken(stream=True, max_tokens=5, ignore_eos=True)),
    *_numbered("G-04", taken(TEXT, stream=True)),
    *_numbered("G-05", taken(stream=True, stream_options={"include_usage": True})),
    *_numbered("G-07", taken(stream=True, **_FULL_LENGTH), taken(max_tokens=7, ignore_eos=True)),
    *_numbered("G-08", taken(n=2, seed=11, stream=True, temperature=1), taken(n=2, seed=11, temperature=1)),
    *_numbered("G-09", turned_down("n", n=0, stream=True), turned_down("n", TEXT, n=0, stream=True)),
    *_numbered("G-11", *forced(_SPACEMAN, _SPACEMAN), *forced(_SPACEMAN, _SPACEMAN, TEXT)),
    *_numbered("G-14", *forced("ABCDEFGHIJKL", "ABC", stop=["DEFGHIJ"])),
    *_numbered("G-15", *forced("alpha beta gamma delta", "alpha ", stop=["beta gamma"])),
    *_numbered("G-16", *forced("hello world", "hello ", TEXT, stop=["wor"]), taken(TEXT, stop_token_ids=[5])),
    *_numbered("G-17", *forced("a < b ZZ end", "a < b ZZ end", stop=["ZZZZZZ"])),
    *_numbered(
        "G-19",
        turned_down("stop", stop=""),
        turned_down("stop", stop=["", "x"]),
        turned_down("stop", TEXT, stop=""),
        turned_down("stop", RESPONSES, stop=[""]),
    ),
    *_numbered("G-20", taken(tools=[]), taken(tools=[], tool_choice="auto"), taken(RESPONSES, tools=[])),
    *_numbered("G-21", turned_down("tool_choice", tools=[], tool_choice="required", stream=True)),
    *_numbered("G-22", taken(tools=[_TOOL], tool_choice=_NAMED, stream=True, max_tokens=200)),
    *_numbered("G-23", *(taken(tools=[_TOOL], tool_choice="required", max_tokens=4, stream=s) for s in (True, False))),
    *_numbered("G-27", taken(tools=[_TOOL, _LIGHT], tool_choice="required", parallel_tool_calls=False)),
    *_numbered(
        "G-28",
        taken(tools=[_TOOL], tool_choice="required", response_format={"type": "json_object"}),
        taken(tools=[_LIGHT], tool_choice="required", stream=True, **_schema({"type": "object"})),
    ),
    *_numbered(
        "G-29",
        taken(messages=[_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]}, _ANSWER], tools=[_TOOL]),
    ),
    *_numbered(
        "G-30", turned_down(_SCHEMA_PARAM, **_schema({"type": "object", "properties": {"a": "bar"}}), stream=True)
    ),
    *_numbered("G-31", turned_down(_SCHEMA_PARAM, **_schema(_PATTERN, strict=True))),
    *_numbered("G-32", raw(_DEEP, "response_format")),
    *_numbered("G-33", taken(**_schema(_one_of(3))), turned_down(_SCHEMA_PARAM, **_schema(_one_of(5)))),
    *_numbered("G-34", taken(response_format={"type": "json_object"}, max_tokens=50, temperature=1.5, seed=3)),
    *_numbered("G-35", taken(**_schema({"$defs": {"node": _NODE}, "$ref": "#/$defs/node"}))),
    *_numbered("G-37", *forced("😊", "😊", logprobs=True, top_logprobs=3)),
    *_numbered("G-38", taken(logprobs=True, top_logprobs=20, logit_bias={"5": -100})),
    *_numbered("G-39", taken(logprobs=True, top_logprobs=0), taken(logprobs=True, top_logprobs=None)),
    *_numbered("G-40", taken(TEXT, prompt="Your answer: Yes", max_tokens=0, echo=True, logprobs=1)),
    *_numbered("G-41", taken(TEXT, prompt="The cat", echo=True, logprobs=0, stream=True)),
    *_numbered("G-42", taken(TEXT, prompt="one two three", echo=True, logprobs=2, max_tokens=1)),
    *_numbered(
        "G-43",
        raw(_literal("temperature", "NaN"), "temperature"),
        raw(_literal("temperature", "Infinity"), "temperature"),
        turned_down("temperature", temperature=-0.5),
        turned_down("temperature", temperature=2.5),
        raw(b'{"input":"hi","top_p":-Infinity}', "top_p", RESPONSES),
        turned_down("temperature", RESPONSES, temperature=2.5),
    ),
    *_numbered(
        "G-44",
        turned_down("logit_bias", logit_bias={str(BEYOND_VOCABULARY): 5}),
        turned_down("logit_bias", logit_bias={"-1": 1}),
        turned_down("logit_bias", logit_bias={"foo": 1}),
        turned_down("logit_bias", TEXT, logit_bias={str(BEYOND_VOCABULARY): -100}, stream=True),
    ),
    *_numbered(
        "G-45",
        turned_down("stop_token_ids", stop_token_ids=[BEYOND_VOCABULARY], min_tokens=1),
        turned_down("allowed_token_ids", TEXT, allowed_token_ids=[BEYOND_VOCABULARY]),
    ),
    *_numbered("G-46", taken(top_p=1.0), taken(top_p=0), taken(RESPONSES, top_p=0)),
    *_numbered("G-47", Case("", 200, chat(**_NULLS))),
    *_numbered("G-48", raw(b'"x"'), raw(b"[1]"), raw(b"7"), raw(b"null"), raw(b"[]", None, RESPONSES)),
    *_numbered("G-49", raw(b'{"model":"M","messages":[}'), raw(b"[" * 100_000), raw(b"{", None, RESPONSES)),
    *_numbered(
        "G-50",
        turned_down("prompt", TEXT, prompt=""),
        turned_down("prompt", TEXT, prompt=[]),
        raw(b'{"messages":[]}', "messages"),
        turned_down("input", RESPONSES, input=[]),
    ),
    *_numbered(
        "G-51",
        raw(b'{"messages":[{"role":"user","content":"emoji \\ud83d"}]}', "messages[0].content"),
        raw(b'{"input":"emoji \\ud83d"}', "input", RESPONSES),
    ),
    *_numbered("G-52", taken(n=3, seed=7, temperature=1.5, max_tokens=24, ignore_eos=True)),
    *_numbered("G-53", taken(messages=[{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}])),
    *_numbered("G-54", taken(messages=[_USER, _USER])),
    *_numbered("G-55", taken(messages=[_USER, {"role": "assistant", "content": ""}, _USER])),
    *_numbered(
        "G-56",
        turned_down("messages", messages=[{"role": "user", "content": "word " * 5_000}]),
        turned_down("prompt", TEXT, prompt="word " * 5_000, stream=True),
        turned_down("input", RESPONSES, input="word " * 5_000, stream=True),
    ),
    *_numbered(
        "G-57",
        *(
            Case("", 404, {**_body(path, {}), "model": "no-such-model"}, path, param="model")
            for path in (CHAT, TEXT, RESPONSES)
        ),
    ),
    *_numbered("G-58", *(Case("", 200, None, path, "OPTIONS", headers=_PREFLIGHT) for path in (CHAT, "/v1/models"))),
    *_numbered("G-59", *(Case("", 200, _body(path, {}), path + "/") for path in (CHAT, TEXT, RESPONSES))),
    *_numbered("G-60", replace(taken(request_id="same", stream=True), headers={"x-request-id": "same"})),
    *_numbered("G-69", taken(RESPONSES, stream=True)),
    *_numbered("G-75", *forced("wait... go", "wait", TEXT, stop=[".."], max_tokens=20)),
    *_numbered(
        "G-76",
        turned_down("tool_choice", tool_choice="required"),
        turned_down("tool_choice", tool_choice={"type": "function", "function": {"name": "nope"}}, tools=[_TOOL]),
        turned_down("tool_choice", RESPONSES, tool_choice="required", tools=[]),
        turned_down("tool_choice", RESPONSES, tool_choice={"type": "function", "name": "nope"}, tools=[_NAMED_FLAT]),
    ),
    *_numbered(
        "G-77",
        taken(messages=[_USER, {"role": "assistant", "tool_calls": [_CALL]}, {**_ANSWER, "content": ""}]),
        taken(
            messages=[
                _USER,
                {"role": "assistant", "content": "", "tool_calls": [_CALL]},
                {**_ANSWER, "content": [{"type": "text", "text": "rain"}]},
            ]
        ),
    ),
    *_numbered("G-78", taken(**_schema({"type": ["string", "null"]})), taken(**_schema({"enum": [None, 3, "a"]}))),
    *_numbered("G-79", taken(TEXT, prompt="\n1. Carol has 20", echo=True, logprobs=1, max_tokens=5)),
    *_numbered("G-80", taken(temperature=1e-9), taken(temperature=0.0001, top_p=0.0001)),
    *_numbered("G-81", Case("", 200, text(**_TEXT_NULLS), TEXT), Case("", 200, ask(**_RESPONSE_NULLS), RESPONSES)),
    *_numbered(
        "G-82",
        taken(messages=[{"role": "user", "content": {"type": "text", "text": "a"}}]),
        taken(messages=[_USER, {"role": "assistant", "tool_calls": [_CALL]}, {**_ANSWER, "content": None}]),
        turned_down(
            "input[0].content", RESPONSES, input=[{"role": "user", "content": {"type": "input_text", "text": "a"}}]
        ),
    ),
    *_numbered(
        "G-83",
        Case("", 200, None, "/v1/models/", "GET"),
        Case("", 200, None, "/health", "HEAD"),
        Case("", 200, None, "/v1/models", "HEAD"),
        Case("", 405, None, CHAT, "GET"),
        Case("", 405, None, "/v1/models", "PUT"),
        Case("", 404, None, "/nope", "GET"),
    ),
    *_numbered(
        "G-84",
        taken(TEXT, prompt=["Q: 2+2? A: 4"] * 4, echo=True, max_tokens=0, temperature=0, logprobs=10, seed=1234),
    ),
    *_numbered("G-86", taken(RESPONSES, input=_REPLAYED), taken(RESPONSES, input=_REPLAYED, stream=True)),
    *_numbered(
        "bad",
        turned_down("stop", stop=[f"s{number}" for number in range(10_000)]),
        turned_down("tools[0].function.name", tools=[{"type": "function", "function": {"name": "🌤"}}]),
        turned_down("messages[0].content[0]", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        turned_down("guided_regex", guided_regex="(" * 3_000),
        turned_down("n", TEXT, n=128, prompt=["a"] * 100),
    ),
]
"""Those that are one request; what needs more is a test of its own."""
