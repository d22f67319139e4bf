"""Whatever a client sends, the answer is 200 or a refusal in the error shape; never a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.model import TextModel
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from tests.fakes import ScriptedEngine, says, scripted_client, text_model
from tests.gateway.wire import CHAT, TEXT, chat, error_of, text

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-2, 130),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name", "reasoning"]),
        st.one_of(VALUES, st.sampled_from(["user", "assistant", "tool", "system"])),
        max_size=4,
    ),
    max_size=3,
)


def bodies(model: type[ChatRequest] | type[CompletionRequest]) -> st.SearchStrategy[dict[str, Any]]:
    names = sorted({*model.model_fields, *model.unsupported} - {"model"})
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=4)


def post(model: TextModel, path: str, body: dict[str, Any]) -> httpx.Response:
    async def send() -> httpx.Response:
        engine = ScriptedEngine(model, says(model, "ok"))
        async with scripted_client(engine, model) as client:
            answer = await client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
            assert not engine.streams
            return answer

    return asyncio.run(send())


def check(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        error_of(answer, 400)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text
    else:
        assert answer.json()["choices"]


MODEL = text_model()


@settings(max_examples=150, deadline=None)
@given(bodies(ChatRequest))
def test_any_chat_body_is_answered_or_refused(body: dict[str, Any]) -> None:
    check(post(MODEL, CHAT, {**chat(), **body}))


@settings(max_examples=100, deadline=None)
@given(bodies(CompletionRequest))
def test_any_text_body_is_answered_or_refused(body: dict[str, Any]) -> None:
    check(post(MODEL, TEXT, {**text(), **body}))


@settings(max_examples=100, deadline=None)
@given(MESSAGES)
def test_any_messages_are_answered_or_refused(messages: list[dict[str, Any]]) -> None:
    check(post(MODEL, CHAT, chat(messages=messages)))
