"""`retention`: KV of requests that is held for a while when they are over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine.contexts.commands import ContextCommand, RetainContext
from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.prefixes.test_routes import PREFIXES, make
from tests.gateway.responses.wire import RESPONSES, ask
from tests.gateway.runs.workers import Worker, until
from tests.gateway.wire import CHAT, TEXT, Body, chat, error_of, stream, text

WISH = {"ttl_s": 600, "value": 0.9}


@pytest.fixture
def wishes(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> list[RetainContext]:
    """What the engine was asked to keep."""
    asked: list[RetainContext] = []
    obey = engine.contexts.obey

    def listen(command: ContextCommand) -> None:
        if isinstance(command, RetainContext):
            asked.append(command)
        obey(command)

    monkeypatch.setattr(engine.contexts, "obey", listen)
    return asked


@pytest.fixture
async def worker(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[Worker]:
    """One that holds three histories of an account at most; nothing may be left behind it."""
    worker = Worker(engine, model, redis_url, max_retained=3, max_retention_s=1000)
    yield worker
    await worker.close()
    assert engine.contexts.histories == {}
    assert engine.contexts.leases == {}


async def whole(client: httpx.AsyncClient, path: str = CHAT, **body: Any) -> Body:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


def said(content: str) -> list[Body]:
    return [{"role": "user", "content": content}]


async def held(engine: ScriptedEngine, count: int) -> None:
    """Waits until so many contexts are held, each with a lease."""
    await until(lambda: len(engine.contexts.leases) == len(engine.contexts.histories) == count)


async def test_the_history_of_a_chat_is_held_with_its_answer(
    engine: ScriptedEngine, model: TextModel, worker: Worker, wishes: list[RetainContext]
) -> None:
    plain = await whole(worker.ann, **chat())
    ids = engine.last.prompt_ids
    kept = await whole(worker.ann, **chat(retention=WISH))
    assert kept["choices"] == plain["choices"]
    assert kept["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    await held(engine, 1)
    (history,) = engine.contexts.histories.values()
    assert history[: len(ids)] == ids
    assert "Hello there." in model.tokenizer.decode(history[len(ids) :])
    (wish,) = wishes
    assert (wish.ttl_ms, wish.value, wish.on_pressure) == (600_000, 0.9, "tokens")
    assert engine.last.account == engine.requests[0].account


async def test_streams_texts_and_responses_are_held_too(engine: ScriptedEngine, worker: Worker) -> None:
    await stream(worker.ann, chat(retention=WISH, messages=said("one")))
    await held(engine, 1)
    await whole(worker.ann, TEXT, **text(retention=WISH, echo=True, logprobs=1))
    await held(engine, 2)
    await whole(worker.ann, RESPONSES, **ask(retention=WISH, input="three"))
    await held(engine, 3)


async def test_a_request_behind_a_prefix_is_held(engine: ScriptedEngine, worker: Worker) -> None:
    await make(worker.ann)
    await whole(worker.ann, **chat(prefix={"name": "h"}, retention=WISH))
    await held(engine, 1)
    await worker.ann.delete(f"{PREFIXES}/h")


async def test_a_history_that_another_goes_on_from_is_held_no_more(engine: ScriptedEngine, worker: Worker) -> None:
    first = await whole(worker.ann, **chat(retention=WISH))
    await held(engine, 1)
    (before,) = engine.contexts.histories
    turns = [*said("hi"), first["choices"][0]["message"], *said("and?")]
    await whole(worker.ann, **chat(retention=WISH, messages=turns))
    await until(lambda: before not in engine.contexts.histories)
    await held(engine, 1)


async def test_of_too_many_histories_the_oldest_goes(engine: ScriptedEngine, worker: Worker) -> None:
    await whole(worker.ann, **chat(retention=WISH, messages=said("one")))
    await held(engine, 1)
    (first,) = engine.contexts.histories
    for number, content in enumerate(("two", "three"), 2):
        await whole(worker.ann, **chat(retention=WISH, messages=said(content)))
        await held(engine, number)
    await whole(worker.bob, **chat(retention=WISH, messages=said("four")))
    await held(engine, 4)
    assert first in engine.contexts.histories
    await whole(worker.ann, **chat(retention=WISH, messages=said("five")))
    await until(lambda: first not in engine.contexts.histories)
    await held(engine, 4)


async def test_it_is_let_go_when_its_time_is_over(
    engine: ScriptedEngine, worker: Worker, wishes: list[RetainContext]
) -> None:
    await whole(worker.ann, **chat(retention={"ttl_s": 0.05}))
    await until(lambda: wishes)
    await until(lambda: not engine.contexts.histories and not len(worker.services.retainer))


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
    assert len(worker.services.retainer) == 0


async def test_a_refused_request_holds_nothing(engine: ScriptedEngine, worker: Worker) -> None:
    error_of(await worker.ann.post(CHAT, json=chat(retention=WISH, max_tokens=10**6)), 400)
    engine.refusal = EngineStopped("no engine")
    error_of(await worker.ann.post(CHAT, json=chat(retention=WISH)), 503)
    engine.refusal = None
    assert engine.contexts.histories == {}
    assert len(worker.services.retainer) == 0


async def test_what_the_engine_refuses_to_keep_is_let_go(
    engine: ScriptedEngine, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    obey = engine.contexts.obey
    monkeypatch.setattr(engine.contexts, "obey", lambda one: None if isinstance(one, RetainContext) else obey(one))
    answer = await whole(worker.ann, **chat(retention={"ttl_s": 60, "max_bytes": 1}))
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    await until(lambda: not engine.contexts.histories)


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
        (TEXT, text(prompt=[10**6]), "prompt"),
        (TEXT, text(prompt=[]), "prompt"),
        (RESPONSES, ask(tools=[{"type": "mcp", "server_label": "x"}]), "tools"),
    ],
)
async def test_what_cannot_be_kept_of_texts_and_responses_is_refused(
    worker: Worker, path: str, body: Body, param: str
) -> None:
    assert error_of(await worker.ann.post(path, json={**body, "retention": WISH}), 400)["param"] == param
