"""`param` of an error is the path of the field at fault, written in one way wherever the fault is found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import gateway.schemas
from gateway.schemas.base import WireModel
from gateway.schemas.faults import PATTERN_WORDS
from tests.gateway.wire import CHAT, TEXT, chat, error_of, refused, text

RESPONSES = "/v1/responses"
ASK = {"input": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(logit_bias={"5": "x"}), "logit_bias.5"),
        (TEXT, text(logit_bias={"5": 1, "6": None}), "logit_bias.6"),
        (RESPONSES, {**ASK, "logit_bias": {"5": []}}, "logit_bias.5"),
        (CHAT, chat(metadata={"5": 5}), "metadata.5"),
        (CHAT, chat(stop=["a", 5]), "stop[1]"),
        (
            CHAT,
            chat(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": 5}]),
            "messages[1].content",
        ),
        (CHAT, chat(tools=[TOOL, {**TOOL, "function": {"name": 5}}]), "tools[1].function.name"),
        (RESPONSES, {**ASK, "tools": [{"type": "function", "name": 5}]}, "tools[0].name"),
        (RESPONSES, {"input": [{"role": "user", "content": "a"}, {"role": "user"}]}, "input[1].content"),
        (TEXT, text(allowed_token_ids=[1, -1]), "allowed_token_ids[1]"),
        (CHAT, chat(extension={}), "extension.source"),
        (CHAT, chat(extension={"source": "x", "sampler": "y"}), "extension.sampler"),
        (CHAT, chat(extension={"sampler": "y", "limits": {"wall_s": 1}}), "extension.limits"),
        (CHAT, chat(structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs.choice"),
        (CHAT, chat(prefix={}), "prefix.id"),
    ],
)
async def test_members_are_written_by_name_and_entries_by_their_place(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    error = await refused(client, body, path, param=param)
    assert param in error["message"] or param.rpartition(".")[0] in error["message"], error


async def test_the_parser_and_the_schema_call_a_field_the_same(client: httpx.AsyncClient) -> None:
    raw = b'{"messages":[{"role":"user","content":"hi"}],"logit_bias":{"5":%s}}'
    found = []
    for wrong in (b"NaN", b'"x"'):
        answer = await client.post(CHAT, content=raw % wrong, headers={"content-type": "application/json"})
        found.append(error_of(answer, 400)["param"])
    assert found == ["logit_bias.5"] * 2


def _patterns(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _patterns(item)


def test_what_a_pattern_asks_for_is_told_in_words() -> None:
    for module in pkgutil.iter_modules(gateway.schemas.__path__):
        importlib.import_module(f"gateway.schemas.{module.name}")
    models, found = [WireModel], set()
    while models:
        model = models.pop()
        models += model.__subclasses__()
        found |= set(_patterns(model.model_json_schema()))
    assert found <= PATTERN_WORDS.keys()
    assert len(found) > 3


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, chat(tools=[{**TOOL, "function": {"name": "a b"}}]), "it must have 1 to 64 letters"),
        (CHAT, chat(extension=5), "Invalid 'extension': it must be an object."),
        (CHAT, chat(messages=["hi"]), "Invalid 'messages[0]': it must be an object."),
        (RESPONSES, {"input": [{"type": "reasoning", "summary": [5]}]}, "'input[0].summary[0]': it must be an object"),
        (RESPONSES, {**ASK, "previous_response_id": "a b"}, "it must have 1 to 128 letters"),
        ("/v1/tools", {"name": "x", "require_approval": 5}, "it must be 'always', 'never' or an object"),
        (CHAT, chat(tool_choice=5, tools=[TOOL]), "Invalid 'tool_choice': it must be a string or an object."),
        (CHAT, chat(stop=5), "Invalid 'stop': it must be a string or a list of strings."),
        (CHAT, chat(messages=[]), "Invalid 'messages': it must not have fewer entries than 1."),
    ],
)
async def test_reasons_name_nothing_of_the_servers_own(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], message: str
) -> None:
    assert message in (await refused(client, body, path))["message"]
