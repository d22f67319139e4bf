"""Requests that a program answers, over HTTP and a small real engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from tests.fakes import MODEL
from tests.gateway.test_answered import check_answer, check_event
from tests.gateway.wire import CHAT, TEXT, Body, chat, joined, stream, text, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = """
async def main(request, lm):
    ctx = await lm.context(request.messages)
    answer = await ctx.generate(max_tokens=request.args["n"], temperature=0.0, emit=request.args.get("emit", False))
    return answer.text
"""

TELLS = """
async def main(request, lm):
    print("begun")
    await lm.emit("one ")
    await lm.emit_event("place", {"at": [1, None]})
    await lm.emit("two")
    return {"answer": 42}
"""


def by(source: str, /, *, limits: Body | None = None, **args: Any) -> Body:
    """The fields of a request that this program answers."""
    return {
        "extension": {"source": f"import asyncio\n{source}", "args": args, **({"limits": limits} if limits else {})}
    }


async def failed(client: httpx.AsyncClient, body: Body, status: int, path: str = CHAT) -> Body:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error: Body = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error


HOLDS = """
async def main(request, lm):
    ctx = await lm.context(request.messages)
    await ctx.prefill()
    await lm.sleep(request.args["s"])
    return "done"
"""


async def test_a_program_is_told_what_its_contexts_have_cost_while_they_waited_too(client: httpx.AsyncClient) -> None:
    answer = await client.post(CHAT, json=chat(**by(HOLDS, s=0.2)))
    charged = answer.json()["extension"]["usage"]["kv_byte_seconds"]
    assert charged >= 1024 * 0.19
    assert float(answer.headers["x-cost-kv-kib-seconds"]) * 1024 == pytest.approx(charged, abs=2)


@pytest.mark.parametrize("max_tokens", [3, 40])
async def test_a_program_that_only_generates_says_what_a_plain_request_says(
    client: httpx.AsyncClient, max_tokens: int
) -> None:
    plain = await whole(client, chat(max_tokens=max_tokens, temperature=0))
    (choice,), usage = plain["choices"], plain["usage"]
    for emit in (False, True):
        answer = await whole(client, chat(**by(GREEDY, n=max_tokens, emit=emit)))
        assert answer["choices"][0]["message"] == choice["message"]
        assert answer["choices"][0]["finish_reason"] == choice["finish_reason"]
        assert answer["usage"]["completion_tokens"] == usage["completion_tokens"]
        assert answer["usage"]["prompt_tokens"] == usage["prompt_tokens"]
        assert answer["extension"]["exec_path"] == "fused"
        assert answer["extension"]["result"] is None
        parts = await stream(client, chat(**by(GREEDY, n=max_tokens, emit=emit)))
        assert joined(parts) == choice["message"]["content"]
        assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["extension"]["usage"]["completion_tokens"] == usage["completion_tokens"]


async def test_text_events_and_logs_come_in_order(client: httpx.AsyncClient) -> None:
    parts = await stream(client, chat(**by(TELLS), stream_options={"include_usage": True}))
    told = [
        part["choices"][0]["delta"].get("content")
        or {k: v for k, v in part.get("extension", {}).items() if k != "usage"}
        for part in parts
        if part["choices"] and part["choices"][0]["finish_reason"] is None
    ]
    assert [one for one in told if one] == [
        {"log": "begun\n"},
        "one ",
        {"event": {"type": "place", "data": {"at": [1, None]}}},
        "two",
    ]
    assert all("choices" in part for part in parts)
    ending, usage = parts[-2:]
    assert ending["extension"]["result"] == {"answer": 42}
    assert ending["extension"]["logs"] == "begun\n"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 0


async def test_the_answer_holds_what_was_emitted_and_what_main_returned(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(**by(TELLS)))
    assert answer["choices"][0]["message"]["content"] == "one two"
    assert answer["extension"]["result"] == {"answer": 42}
    assert answer["extension"]["run_id"].startswith("run_")


CALLS = """
async def main(request, lm):
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"content": None, "tool_calls": [call], "reasoning_content": "because"}
"""


async def test_a_message_can_hold_calls_and_thinking(client: httpx.AsyncClient) -> None:
    answer = await whole(client, chat(**by(CALLS)))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "because"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    parts = await stream(client, chat(**by(CALLS)))
    deltas = [part["choices"][0]["delta"] for part in parts]
    (call,) = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert call == {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"


SEES = """
async def main(request, lm):
    return {"result": [request.messages, request.model, request.params, request.tools, request.args, request.stream]}
"""


async def test_a_program_sees_the_request(client: httpx.AsyncClient) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    fields = chat(temperature=0.5, logit_bias={"3": 1.5}, tools=[tool], seed=None, **by(SEES, x=[1]))
    seen = (await whole(client, fields))["extension"]["result"]["result"]
    assert seen[0] == [{"role": "user", "content": "hi"}]
    assert seen[1] == MODEL
    assert seen[2] == {"max_tokens": 32, "temperature": 0.5, "logit_bias": {"3": 1.5}}
    assert seen[3][0]["function"]["name"] == "f"
    assert seen[4] == {"x": [1]}
    assert seen[5] is False


async def test_a_text_completion_can_be_answered_too(client: httpx.AsyncClient) -> None:
    source = (
        "async def main(request, lm):\n    ctx = await lm.context(request.prompt)\n"
        "    return (await ctx.generate(max_tokens=6, temperature=0.0)).text\n"
    )
    plain = await whole(client, text(max_tokens=6, temperature=0), TEXT)
    answer = await whole(client, text(**by(source)), TEXT)
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == plain["choices"][0]["text"]
    assert joined(await stream(client, text(**by(source)), TEXT)) == plain["choices"][0]["text"]
    error = await failed(client, text(**by(source)) | {"prompt": ["a", "b"]}, 400, TEXT)
    assert error["param"] == "prompt"


async def test_a_response_is_answered_stored_and_followed(app: FastAPI, client: httpx.AsyncClient) -> None:
    sdk = AsyncOpenAI(base_url="http://test/v1", api_key="ann", http_client=client)  # type: ignore[arg-type]  # httpx2 is httpx by another name
    program = by(GREEDY, n=8)
    plain = await whole(client, chat(max_tokens=8, temperature=0))
    answer = await sdk.responses.create(model=MODEL, input="hi", extra_body=program)
    assert answer.output_text == plain["choices"][0]["message"]["content"]
    kept = await sdk.responses.retrieve(answer.id)
    assert kept.output_text == answer.output_text
    assert (kept.model_extra or {})["extension"]["exec_path"] == "fused"
    events = [
        event async for event in await sdk.responses.create(model=MODEL, input="hi", stream=True, extra_body=program)
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    queued = await sdk.responses.create(model=MODEL, input="hi", background=True, extra_body=program)
    while queued.status in ("queued", "in_progress"):
        await asyncio.sleep(0.02)
        queued = await sdk.responses.retrieve(queued.id)
    assert (queued.status, queued.output_text) == ("completed", answer.output_text)


REFUSED: dict[str, tuple[Body, str, str]] = {
    "no program": ({"extension": {}}, "extension.source", ""),
    "two programs": ({"extension": {"source": "x", "name": "y"}}, "extension.name", ""),
    "an empty source": ({"extension": {"source": ""}}, "extension.source", ""),
    "a source that is no text": ({"extension": {"source": 3}}, "extension.source", "invalid_type"),
    "no object": ({"extension": "x"}, "extension", "invalid_type"),
    "a name that is none": ({"extension": {"name": "../x"}}, "extension.name", "invalid_argument"),
    "a lane that is none": ({"extension": {"source": "x", "strict_path": "gpu"}}, "extension.strict_path", ""),
    "a script and a sampler": ({"extension": {"source": "x", "sampler": "y"}}, "extension.sampler", ""),
    "limits of a sampler": ({"extension": {"sampler": "x", "limits": {"wall_s": 1}}}, "extension.limits", ""),
    "no device program": ({"extension": {"sampler": "x = 1"}}, "extension.sampler", "program_invalid"),
    "a parameter that it lacks": (
        {"extension": {"sampler": "def sample(logits, t):\n    return argmax(logits * t)\n"}},
        "extension.args.t",
        "invalid_argument",
    ),
    "a parameter that is no number": (
        {"extension": {"sampler": "def sample(t):\n    return t\n", "args": {"t": {"a": 1}}}},
        "extension.args.t",
        "invalid_argument",
    ),
    "several answers": ({**by(GREEDY, n=1), "n": 2}, "n", ""),
    "an unknown limit": (by(GREEDY, n=1, limits={"speed": 1}), "extension.limits.speed", "invalid_argument"),
    "a limit above the server's": (by(GREEDY, limits={"wall_s": 1e9}), "extension.limits.wall_s", "invalid_argument"),
    "a limit below zero": (by(GREEDY, limits={"wall_s": -1}), "extension.limits.wall_s", "invalid_argument"),
    "no main": (by("x = 1\n"), "extension.source", "program_invalid"),
}


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("streams", [False, True])
async def test_what_is_wrong_is_a_400_that_names_the_field(
    client: httpx.AsyncClient, fields: Body, param: str, code: str, streams: bool
) -> None:
    error = await failed(client, chat(**fields, stream=streams), 400)
    assert error["param"] == param, error
    assert (error["code"] or "") == code


async def test_a_program_that_is_wrong_is_told_with_line_and_column(client: httpx.AsyncClient) -> None:
    error = await failed(
        client, chat(extension={"source": "async def main(request, lm):\n    return request.nam\n"}), 400
    )
    assert error["code"] == "program_invalid"
    (problem,) = error["diagnostics"]
    assert (problem["line"], problem["column"], problem["severity"]) == (2, 12, "error")
    assert "nam" in problem["message"]


PARAMS = """
EXTENSION = {
    "name": "x",
    "params": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 4, "default": 2}}},
}
"""


async def test_arguments_are_checked_against_the_header(client: httpx.AsyncClient) -> None:
    error = await failed(client, chat(**by(PARAMS + GREEDY, n=5)), 400)
    assert error["param"] == "extension.args.n"
    assert (await whole(client, chat(**by(PARAMS + GREEDY))))["usage"]["completion_tokens"] == 2


async def test_an_exception_is_told_with_the_lines_of_the_script(client: httpx.AsyncClient) -> None:
    source = "async def main(request, lm):\n    await lm.emit('so far')\n    return 1 // int(request.args['zero'])\n"
    error = await failed(client, chat(**by(source, zero=0)), 400)
    assert error["type"] == "extension_error"
    assert error["code"] == "extension_error"
    assert "ZeroDivisionError" in error["message"]
    assert error["traceback"].startswith("Traceback")
    assert "request.args['zero']" in error["traceback"]
    assert error["line"] == 4
    answer = await client.post(CHAT, json=chat(**by(source, zero=0), stream=True))
    *parts, last = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    assert joined(parts) == "so far"
    assert last["error"]["traceback"] == error["traceback"]
    assert answer.text.endswith("data: [DONE]\n\n")


LIMITS: dict[str, tuple[str, Body]] = {
    "exec_s": ("async def main(request, lm):\n    while True:\n        pass\n", {"exec_s": 0.2}),
    "wall_s": ("async def main(request, lm):\n    while True:\n        await lm.sleep(0.05)\n", {"wall_s": 0.2}),
    "host_calls": ("async def main(request, lm):\n    while True:\n        await lm.emit('')\n", {"host_calls": 20}),
    "decode_tokens": (
        "async def main(request, lm):\n    ctx = await lm.context('a')\n    await ctx.generate(max_tokens=50)\n",
        {"decode_tokens": 10},
    ),
}


@pytest.mark.parametrize(("limit", "source", "limits"), [(name, *case) for name, case in LIMITS.items()], ids=LIMITS)
async def test_a_limit_ends_the_program_and_says_which(
    client: httpx.AsyncClient, limit: str, source: str, limits: Body
) -> None:
    error = await failed(client, chat(**by(source, limits=limits)), 400)
    assert error["code"] == "limit_exceeded"
    assert error["limit"] == limit
    assert error["allowed"] == next(iter(limits.values()))
    assert error["used"] >= error["allowed"]


async def test_programs_and_plain_requests_go_side_by_side(client: httpx.AsyncClient) -> None:
    plain = await whole(client, chat(max_tokens=20, temperature=0))
    loops = [client.post(CHAT, json=chat(**by(LIMITS["exec_s"][0], limits={"exec_s": 0.5}))) for _ in range(3)]
    ends = [client.post(CHAT, json=chat(**by(GREEDY, n=20))) for _ in range(8)]
    plains = [client.post(CHAT, json=chat(max_tokens=20, temperature=0)) for _ in range(8)]
    answers = await asyncio.gather(*loops, *ends, *plains)
    assert [answer.status_code for answer in answers[:3]] == [400] * 3
    contents = {answer.json()["choices"][0]["message"]["content"] for answer in answers[3:]}
    assert contents == {plain["choices"][0]["message"]["content"]}


TYPED = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extensions.sandbox.stubs import (
        LM,
        Request,
    )


async def main(request: Request, lm: LM):
    raise ValueError(str(len(request.messages)))
"""


async def test_a_program_may_import_its_types_for_an_editor(client: httpx.AsyncClient) -> None:
    error = await failed(client, chat(extension={"source": TYPED}), 400)
    assert error["message"] == "The program raised ValueError: 1 (line 12, in main)"


@pytest.mark.parametrize("source", [TELLS, CALLS, GREEDY], ids=["tells", "calls", "greedy"])
async def test_answers_are_as_described(client: httpx.AsyncClient, source: str) -> None:
    description = (await client.get("/openapi.json")).json()
    for path, body in ((CHAT, chat(**by(source, n=3))), (TEXT, text(**by(source.replace("messages", "prompt"), n=3)))):
        check_answer(description, f"POST {path}", await whole(client, body, path))
        for part in await stream(client, body, path):
            check_event(description, f"POST {path}", part)
    response = await client.post("/v1/responses", json={"input": "hi", **by(source, n=3)})
    check_answer(description, "POST /v1/responses", response.json())


SAMPLER = "def sample(logits, key, t):\n    return gumbel_argmax(logits / t, key)\n"


async def test_a_device_program_draws_the_tokens_of_a_plain_request(client: httpx.AsyncClient) -> None:
    extension = {"sampler": SAMPLER, "args": {"t": 0.75}}
    fields = {"max_tokens": 12, "seed": 5, "n": 2}
    plain = await whole(client, chat(**fields, temperature=0.75, top_p=1, top_k=0))
    for extra in ({}, {"temperature": 0}):
        answer = await whole(client, chat(**fields, **extra, extension=extension))
        assert answer["choices"] == plain["choices"]
    parts = await stream(client, chat(**fields, extension=extension))
    assert [joined(parts, index) for index in range(2)] == [one["message"]["content"] for one in plain["choices"]]
    body = {"input": "hi", "max_output_tokens": 12, "seed": 5, "extension": extension}
    response = (await client.post("/v1/responses", json=body)).json()
    assert response["output"][0]["content"][0]["text"] == plain["choices"][0]["message"]["content"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_device_program_that_draws_no_token_is_told(client: httpx.AsyncClient, streams: bool) -> None:
    source = "def sample(prev, step):\n    return where(step < 2, prev, -1)\n"
    answer = await client.post(CHAT, json=chat(extension={"sampler": source}, stream=streams))
    if streams:
        assert answer.status_code == 200
        assert "token that may not come here" in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "extension.sampler"
    assert (await whole(client, chat(max_tokens=2)))["usage"]["completion_tokens"] == 2


BY_DEVICE = f"""
async def main(request, lm):
    sampler = await lm.program({SAMPLER!r}, t=0.75)
    ctx = await lm.context(request.messages)
    answer = await ctx.generate(max_tokens=12, seed=5, sampler=sampler)
    return answer.text
"""


async def test_a_script_can_draw_by_a_device_program(client: httpx.AsyncClient) -> None:
    plain = await whole(client, chat(max_tokens=12, seed=5, temperature=0.75, top_p=1, top_k=0))
    answer = await whole(client, chat(**by(BY_DEVICE)))
    assert answer["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
    assert answer["extension"]["exec_path"] == "device"
    assert "device program" in answer["extension"]["exec_reason"]
    strict = by(BY_DEVICE)
    strict["extension"]["strict_path"] = "fused"
    error = await failed(client, chat(**strict), 400)
    assert error["code"] == "capability_missing"
    error = await failed(client, chat(**by(BY_DEVICE.replace("t=0.75", "t={1}"))), 400)
    assert (error["code"], error["diagnostics"][0]["rule"]) == ("program_invalid", "invalid-argument-type")
    error = await failed(client, chat(**by(BY_DEVICE.replace("t=0.75", "t='a'"))), 400)
    assert error["code"] == "invalid_argument"
    assert "parameter `t` must be" in error["message"]
    error = await failed(client, chat(**by(BY_DEVICE.replace(", t=0.75", ""))), 400)
    assert (error["code"], "parameter `t`" in error["message"]) == ("invalid_argument", True)
    error = await failed(client, chat(**by(BY_DEVICE.replace("gumbel_argmax", "gumbel_max"))), 400)
    assert (error["code"], "no function `gumbel_max`" in error["message"]) == ("program_invalid", True)


async def test_an_error_of_the_server_that_a_script_does_not_catch_keeps_its_code(client: httpx.AsyncClient) -> None:
    source = "async def main(request, lm):\n    await lm.model.require('teleportation')\n"
    error = await failed(client, chat(**by(source)), 400)
    assert (error["type"], error["code"]) == ("extension_error", "capability_missing")
