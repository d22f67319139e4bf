"""No request, however made, may stop or change another one: every case beside eight streams on a real engine."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from loadtests.server import RunningServer
from tests.e2e.conftest import connect
from tests.gateway.cases import CASES, Case
from tests.gateway.responses.wire import RESPONSES, events_of
from tests.gateway.wire import TEXT, chat, chunks, endings, error_of, joined, read_events, text, whole

NUM_STREAMS = 8
NUM_TOKENS = 48
"""Of each stream; with the prompts they leave little of the pool."""


def body_of(number: int) -> dict[str, Any]:
    """A stream of its own: other prompt, other seed."""
    return text(
        prompt=f"story number {number}",
        seed=number,
        temperature=0.8,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        return_token_ids=True,
        stream=True,
    )


async def read(client: httpx.AsyncClient, number: int, has_begun: asyncio.Event) -> tuple[str, list[int]]:
    """Text and token ids of one stream; tells when it has begun."""
    words = ""
    ids: list[int] = []
    async with client.stream("POST", TEXT, json=body_of(number)) as answer:
        assert answer.status_code == 200
        async for chunk in read_events(answer):
            assert "error" not in chunk
            choice = chunk["choices"][0]
            words += choice["text"]
            ids += choice.get("token_ids") or []
            has_begun.set()
    return words, ids


@pytest.fixture(scope="module")
def undisturbed(server: RunningServer) -> list[tuple[str, list[int]]]:
    """The streams, each alone."""

    async def read_all() -> list[tuple[str, list[int]]]:
        async with connect(server) as client:
            return [await read(client, number, asyncio.Event()) for number in range(NUM_STREAMS)]

    found = asyncio.run(read_all())
    assert len({words for words, _ in found}) == NUM_STREAMS
    assert all(len(ids) == NUM_TOKENS for _, ids in found)
    return found


async def send(client: httpx.AsyncClient, case: Case) -> None:
    """Sends a case and checks what comes back."""
    kind = {} if case.body is None else {"content-type": "application/json"}
    answer = await client.request(case.method, case.path, content=case.content, headers={**kind, **case.headers})
    assert answer.status_code == case.status, answer.text
    assert answer.headers["x-request-id"] == case.headers.get("x-request-id", answer.headers["x-request-id"])
    if case.method in ("HEAD", "OPTIONS"):
        return
    if case.status != 200:
        error = error_of(answer, case.status)
        assert case.param is None or error["param"] == case.param
    elif not answer.headers["content-type"].startswith("text/event-stream"):
        assert case.says is None or said(answer.json()) == case.says
    elif case.path == RESPONSES:
        assert events_of(answer.text)[-1]["type"] in ("response.completed", "response.incomplete")
    else:
        parts = chunks(answer.text)
        assert all("error" not in part for part in parts)
        assert case.says is None or (joined(parts), endings(parts)) == (case.says, ["stop"])


def said(answer: dict[str, Any]) -> str:
    """The text of a whole answer, which must have ended by itself."""
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_a_case_gets_its_answer_and_leaves_eight_streams_as_they_are(
    client: httpx.AsyncClient, undisturbed: list[tuple[str, list[int]]], case: Case
) -> None:
    begun = [asyncio.Event() for _ in range(NUM_STREAMS)]
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(read(client, number, begun[number])) for number in range(NUM_STREAMS)]
        await begun[0].wait()
        await send(client, case)
    assert [one.result() for one in streams] == undisturbed
    assert (await client.get("/health")).status_code == 200
    await whole(client, chat(max_tokens=1))
