"""Requests that once broke a server of this kind, with the status each must get; numbered as the case log does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

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
    """

    id: str
    status: int
    body: Body | bytes | None
    path: str = CHAT
    method: str = "POST"
    param: str | None = None

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def _numbered(case: str, *requests: Case) -> list[Case]:
    return [
        Case(f"{case}-{number}", one.status, one.body, one.path, one.method, one.param)
        for number, one in enumerate(requests, start=1)
    ]


def taken(path: str = CHAT, **fields: Any) -> Case:
    """A small request that must be answered."""
    return Case("", 200, chat(**fields) if path == CHAT else text(**fields), path)


def turned_down(param: str | None, path: str = CHAT, **fields: Any) -> Case:
    """A small request that must be refused."""
    return Case("", 400, chat(**fields) if path == CHAT else text(**fields), path, param=param)


def raw(body: bytes, param: str | None = None) -> Case:
    """A body that is no valid request."""
    return Case("", 400, body, param=param)


def _literal(name: str, value: str) -> bytes:
    return json.dumps(chat(**{name: 12345})).replace("12345", value).encode()


_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
_USER = {"role": "user", "content": "w?"}
_ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
_NULLS: Body = {
    **dict.fromkeys(("seed", "max_tokens", "stop", "tools", "tool_choice", "top_logprobs", "response_format")),
    **dict.fromkeys(("stream_options", "logit_bias", "n")),
}
_TEXT_NULLS: Body = dict.fromkeys(("max_tokens", "suffix", "logprobs", "stop", "echo", "best_of"))
_FULL_LENGTH: Body = {"ignore_eos": True, "max_tokens": 7, "stream_options": {"include_usage": True}}

CASES = [
    *_numbered("G-01", taken(stream=True)),
    *_numbered("G-04", taken(TEXT, stream=True)),
    *_numbered("G-05", taken(stream=True, stream_options={"include_usage": True})),
    *_numbered("G-07", taken(stream=True, **_FULL_LENGTH), taken(max_tokens=7, ignore_eos=True)),
    *_numbered("G-08", taken(n=2, seed=11, stream=True, temperature=1), taken(n=2, seed=11, temperature=1)),
    *_numbered("G-09", turned_down("n", n=0, stream=True)),
    *_numbered("G-14", taken(stream=True, stop=["DEFGHIJ"]), taken(stop=["beta gamma"]), taken(TEXT, stop=["wor"])),
    *_numbered("G-19", turned_down("stop", stop=""), turned_down("stop", stop=["", "x"])),
    *_numbered(
        "G-29",
        taken(messages=[_USER, {"role": "assistant", "content": None, "tool_calls": [_CALL]}, _ANSWER], tools=[_TOOL]),
    ),
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
    ),
    *_numbered(
        "G-44",
        turned_down("logit_bias", logit_bias={str(BEYOND_VOCABULARY): 5}),
        turned_down("logit_bias", logit_bias={"-1": 1}),
        turned_down("logit_bias", logit_bias={"foo": 1}),
    ),
    *_numbered("G-45", turned_down("stop_token_ids", stop_token_ids=[BEYOND_VOCABULARY], min_tokens=1)),
    *_numbered("G-46", taken(top_p=1.0), taken(top_p=0)),
    *_numbered("G-47", Case("", 200, chat(**_NULLS))),
    *_numbered("G-48", raw(b'"x"'), raw(b"[1]"), raw(b"7"), raw(b"null")),
    *_numbered("G-49", raw(b'{"model":"M","messages":[}'), raw(b"[" * 100_000)),
    *_numbered(
        "G-50", turned_down("prompt", TEXT, prompt=""), turned_down("prompt", TEXT, prompt=[]), raw(b'{"messages":[]}')
    ),
    *_numbered(
        "G-51",
        raw(b'{"messages":[{"role":"user","content":"emoji \\ud83d"}]}', "messages[0].content"),
    ),
    *_numbered("G-52", taken(n=3, seed=7, temperature=1.5, max_tokens=24, ignore_eos=True)),
    *_numbered("G-53", taken(messages=[{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}])),
    *_numbered("G-55", taken(messages=[_USER, {"role": "assistant", "content": ""}, _USER])),
    *_numbered("G-56", turned_down("messages", messages=[{"role": "user", "content": "word " * 5_000}])),
    *_numbered("G-57", Case("", 404, chat(model="no-such-model"), param="model")),
    *_numbered("G-59", Case("", 200, chat(), CHAT + "/"), Case("", 200, text(), TEXT + "/")),
    *_numbered("G-60", taken(request_id="same", stream=True)),
    *_numbered(
        "G-77", taken(messages=[_USER, {"role": "assistant", "tool_calls": [_CALL]}, {**_ANSWER, "content": ""}])
    ),
    *_numbered("G-79", taken(TEXT, prompt="\n1. Carol has 20", echo=True, logprobs=1, max_tokens=5)),
    *_numbered("G-80", taken(temperature=1e-9), taken(temperature=0.0001, top_p=0.0001)),
    *_numbered("G-81", Case("", 200, text(**_TEXT_NULLS), TEXT)),
    *_numbered("G-82", taken(messages=[{"role": "user", "content": {"type": "text", "text": "a"}}])),
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
]
"""Those that are one request; what needs more is a test of its own."""
