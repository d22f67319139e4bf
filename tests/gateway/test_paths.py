"""`param` of an error is the path of the field at fault, written in one way wherever the fault is found."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

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
