"""`retention`: KV of requests that the engine is to keep for a while when they are over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine.contexts.commands import ContextCommand, KeepContext, ReleaseContexts
from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.prefixes.test_routes import PREFIXES, make
from tests.gateway.responses.wire import RESPONSES, ask
from tests.gateway.runs.workers import Worker, until
from tests.gateway.wire import CHAT, TEXT, Body, chat, error_of, stream, text

WISH = {"ttl_s": 600, "value": 0.9}


@pytest.fixture
def wishes(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> list[KeepContext]:
    """What the engine was asked to keep."""
    asked: list[KeepContext] = []
    obey = engine.contexts.obey

    def listen(command: ContextCommand) -> None:
        if isinstance(command, KeepContext):
            asked.append(command)
        obey(command)

    monkeypatch.setattr(engine.contexts, "obey", listen)
    return asked


@pytest.fixture
async def worker(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[Worker]:
    """One whose accounts may have three histories kept; it may hold nothing itself in the end."""
    worker = Worker(engine, model, redis_url, max_retained=3, max_retention_s=1000)
    yield worker
    await worker.close()
    assert engine.contexts.histories == {}


async def whole(client: httpx.AsyncClient, path: str = CHAT, **body: Any) -> Body:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


def said(content: str) -> list[Body]:
    return [{"role": "user", "content": content}]


async def test_the_history_of_a_chat_is_kept_with_its_answer_and_that_is_told(
    engine: ScriptedEngine, model: TextModel, worker: Worker, wishes: list[KeepContext]
) -> None:
    plain = await whole(worker.ann, **chat())
    ids = engine.last.prompt_ids
    assert "retention" not in plain
    kept = await whole(worker.ann, **chat(retention=WISH))
    assert kept["choices"] == plain["choices"]
    assert kept["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    (history,) = engine.contexts.kept.values()
    assert history[: len(ids)] == ids
    assert "Hello there." in model.tokenizer.decode(history[len(ids) :])
    (wish,) = wishes
    assert (wish.ttl_ms, wish.value, wish.max_kept) == (600_000, 0.9, 3)
    assert engine.last.account == engine.requests[0].account
    told = kept["retention"]
    assert (told["status"], told["tokens"], told["reason"]) == ("kept", len(history), None)
    assert told["bytes"] == -(-(len(history) - 1) // 16) * engine.info.page_bytes
    assert abs(told["expires_at"] - time.time() - 600) < 60


async def test_streams_texts_and_responses_are_kept_and_told_too(engine: ScriptedEngine, worker: Worker) -> None:
    for usage in ({}, {"stream_options": {"include_usage": True}}):
        *chunks, last = await stream(worker.ann, chat(retention=WISH, messages=said("one"), **usage))
        assert (last["choices"], last["retention"]["status"], "usage" in last) == ([], "kept", bool(usage))
        assert all("retention" not in one for one in chunks)
    assert len(engine.contexts.kept) == 2
    answer = await whole(worker.ann, TEXT, **text(retention=WISH, echo=True, logprobs=1))
    assert answer["retention"]["status"] == "kept"
    answer = await whole(worker.ann, RESPONSES, **ask(retention=WISH, input="three", store=True))
    assert answer["retention"]["status"] == "kept"
    assert (await worker.ann.get(f"{RESPONSES}/{answer['id']}")).json()["retention"] == answer["retention"]
    streamed = await worker.ann.post(RESPONSES, json=ask(retention=WISH, input="three", stream=True))
    assert '"retention":{"status":"kept"' in streamed.text.split("event: response.completed")[1]
    assert len(engine.contexts.kept) == 5


async def test_a_request_behind_a_prefix_is_kept(engine: ScriptedEngine, worker: Worker) -> None:
    await make(worker.ann)
    await whole(worker.ann, **chat(prefix={"name": "h"}, retention=WISH))
    assert len(engine.contexts.kept) == 1
    await worker.ann.delete(f"{PREFIXES}/h")


async def test_the_end_of_a_worker_is_nothing_to_what_is_kept(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    worker = Worker(engine, model, redis_url)
    await whole(worker.ann, **chat(retention=WISH))
    await worker.vanish()
    assert len(engine.contexts.kept) == 1


async def test_nothing_is_held_of_what_the_client_left(
    engine: ScriptedEngine, model: TextModel, worker: Worker
) -> None:
    going = asyncio.Event()
    ids = model.tokenizer.encode("Still here.", add_special=False)
    engine.script = lambda request, index: [ids[:1], going, ids[1:]]
    asked = asyncio.create_task(worker.ann.post(CHAT, json=chat(retention=WISH)))
    await until(lambda: engine.streams)
    asked.cancel()
    await until(lambda: not engine.streams and not engine.contexts.histories)
    assert engine.contexts.kept == {}


async def test_a_refused_request_holds_nothing(engine: ScriptedEngine, worker: Worker) -> None:
    error_of(await worker.ann.post(CHAT, json=chat(retention=WISH, max_tokens=10**6)), 400)
    engine.refusal = EngineStopped("no engine")
    error_of(await worker.ann.post(CHAT, json=chat(retention=WISH)), 503)
    engine.refusal = None
    assert engine.contexts.histories == engine.contexts.kept == {}


@pytest.mark.parametrize(("max_bytes", "reason"), [(1, "max_bytes"), (10**9, "quota")])
async def test_why_the_engine_keeps_nothing_is_told(
    engine: ScriptedEngine, worker: Worker, monkeypatch: pytest.MonkeyPatch, max_bytes: int, reason: str
) -> None:
    obey = engine.contexts.obey

    def refuse(command: ContextCommand) -> None:
        obey(ReleaseContexts([command.context_id]) if isinstance(command, KeepContext) else command)

    monkeypatch.setattr(engine.contexts, "obey", refuse)
    answer = await whole(worker.ann, **chat(retention={"ttl_s": 60, "max_bytes": max_bytes}))
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    told = {"status": "not_kept", "tokens": 0, "bytes": 0, "expires_at": None, "reason": reason}
    assert answer["retention"] == told


async def test_an_engine_that_ends_after_the_answer_costs_the_answer_nothing(
    engine: ScriptedEngine, worker: Worker
) -> None:
    def gone() -> None:
        engine.die()
        raise EngineStopped("gone")

    engine.on_describe = gone
    answer = await whole(worker.ann, **chat(retention=WISH))
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    assert (answer["retention"]["status"], answer["retention"]["reason"]) == ("not_kept", "engine")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"retention": {}}, "retention.ttl_s"),
        ({"retention": {"ttl_s": 0}}, "retention.ttl_s"),
        ({"retention": {"ttl_s": 1001}}, "retention.ttl_s"),
        ({"retention": {"ttl_s": "1"}}, "retention.ttl_s"),
        ({"retention": {"ttl_s": 1, "max_bytes": 0}}, "retention.max_bytes"),
        ({"retention": {"ttl_s": 1, "value": 1.1}}, "retention.value"),
        ({"retention": 60}, "retention"),
        ({"retention": WISH, "n": 2}, "n"),
        ({"retention": WISH, "server_tools": ["x"]}, "server_tools"),
        ({"retention": WISH, "model": "ext:x"}, "retention"),
        ({"retention": WISH, "extension": {"name": "x"}}, "retention"),
    ],
)
async def test_what_cannot_be_kept_is_refused_before_any_work(
    engine: ScriptedEngine, worker: Worker, fields: Body, param: str
) -> None:
    assert error_of(await worker.ann.post(CHAT, json=chat(**fields)), 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, text(prompt=["a", "b"]), "prompt"),
        (TEXT, text(best_of=2), "best_of"),
        (TEXT, text(prompt=[10**6]), "prompt[0]"),
        (TEXT, text(prompt=[]), "prompt"),
        (RESPONSES, ask(tools=[{"type": "mcp", "server_label": "x"}]), "tools"),
    ],
)
async def test_what_cannot_be_kept_of_texts_and_responses_is_refused(
    worker: Worker, path: str, body: Body, param: str
) -> None:
    assert error_of(await worker.ann.post(path, json={**body, "retention": WISH}), 400)["param"] == param
