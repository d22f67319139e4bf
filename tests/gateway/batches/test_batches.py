"""Batches: every line answered once as its endpoint would, in the shape of OpenAI, behind whoever waits."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from engine.errors import EngineStopped, QueueFull
from engine.text.model import TextModel
from gateway.batches.lines import Line
from gateway.schemas.chat import ChatRequest
from gateway.settings import Settings
from tests.fakes import MODEL, ScriptedEngine, says
from tests.gateway.batches.conftest import Start
from tests.gateway.batches.wire import (
    BATCHES,
    FILES,
    Clock,
    begin,
    ended,
    get,
    ids,
    jsonl,
    left_on_disk,
    line,
    results,
    until,
    upload,
)
from tests.gateway.wire import CHAT, TEXT, Body, chat, error_of, text, whole

FIELDS = {
    "id",
    "object",
    "endpoint",
    "model",
    "errors",
    "input_file_id",
    "completion_window",
    "status",
    "output_file_id",
    "error_file_id",
    "created_at",
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "request_counts",
    "usage",
    "metadata",
}


async def test_every_line_is_answered_in_order(client: httpx.AsyncClient) -> None:
    made = await begin(client, [line(number) for number in range(30)], metadata={"a": "b"})
    assert made.keys() == FIELDS
    assert (made["object"], made["status"], made["metadata"]) == ("batch", "validating", {"a": "b"})
    assert made["expires_at"] == made["created_at"] + 24 * 3600
    batch = await ended(client, made["id"])
    assert (batch["status"], batch["errors"], batch["error_file_id"]) == ("completed", None, None)
    assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert batch["model"] == MODEL
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    found = await results(client, batch["output_file_id"])
    assert ids(found) == [f"line-{number}" for number in range(30)]
    assert len({item["id"] for item in found}) == 30
    for item in found:
        assert item["error"] is None
        assert item["response"]["status_code"] == 200
        assert item["response"]["request_id"].startswith("req_")
        assert item["response"]["body"]["choices"][0]["message"]["content"] == "Hello there."
    usage = [item["response"]["body"]["usage"] for item in found]
    assert batch["usage"]["input_tokens"] == sum(one["prompt_tokens"] for one in usage)
    assert batch["usage"]["output_tokens"] == sum(one["completion_tokens"] for one in usage)
    assert batch["usage"]["total_tokens"] == sum(one["total_tokens"] for one in usage)
    written = await get(client, f"{FILES}/{batch['output_file_id']}")
    assert (written["purpose"], written["filename"]) == ("batch_output", f"{made['id']}_output.jsonl")
    assert written["expires_at"] == written["created_at"] + 30 * 24 * 3600


async def test_a_line_is_answered_as_the_same_request_over_http(client: httpx.AsyncClient) -> None:
    bodies: list[Body] = [
        chat(seed=1, logprobs=True, top_logprobs=2),
        chat(n=3, stop=["there"]),
        chat(temperature=9),
        chat(messages="?"),
        chat(tools=[{"type": "other"}]),
        chat(max_tokens=100_000),
        chat(priority="x"),
        chat(priority=2**63),
        {},
    ]
    lines = [line(number, body=body) for number, body in enumerate(bodies)]
    batch = await ended(client, (await begin(client, lines))["id"])
    assert batch["request_counts"] == {"total": 9, "completed": 2, "failed": 7}
    good, bad = await results(client, batch["output_file_id"]), await results(client, batch["error_file_id"])
    assert ids(good) == ["line-0", "line-1"]
    assert ids(bad) == [f"line-{number}" for number in range(2, 9)]
    for body, item in zip(bodies, good + bad, strict=True):
        answer = await client.post(CHAT, content=json.dumps(body), headers={"content-type": "application/json"})
        response = item["response"]
        assert item["error"] is None
        assert response["status_code"] == answer.status_code
        expected = answer.json()
        for name in ("id", "created"):
            assert (name in response["body"]) == (name in expected)
            expected.pop(name, None)
            response["body"].pop(name, None)
        assert response["body"] == expected


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (TEXT, text()),
        (CHAT, chat()),
        ("/v1/responses", {"model": MODEL, "input": "hi", "store": False}),
        ("/v1/embeddings", {"model": MODEL, "input": "hi"}),
    ],
)
async def test_all_kinds_of_endpoints_are_served(
    client: httpx.AsyncClient, engine: ScriptedEngine, endpoint: str, body: Body
) -> None:
    made = await begin(client, [line(1, url=endpoint, body=body)], endpoint=endpoint)
    batch = await ended(client, made["id"])
    (found,) = await results(client, batch["output_file_id"])
    assert found["response"]["body"]["model"] == MODEL
    assert batch["usage"]["input_tokens"] > 0
    assert (batch["usage"]["output_tokens"] > 0) == (endpoint != "/v1/embeddings")
    assert engine.last.priority == 1000


@pytest.mark.parametrize("field", ["stream", "background"])
async def test_what_needs_somebody_who_waits_is_refused(client: httpx.AsyncClient, field: str) -> None:
    batch = await ended(client, (await begin(client, [line(1, body=chat(**{field: True})), line(2)]))["id"])
    (bad,) = await results(client, batch["error_file_id"])
    assert bad["response"]["body"]["error"]["param"] == field
    assert batch["request_counts"]["completed"] == 1


async def test_a_file_with_bad_lines_fails_before_any_work(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    batch = await ended(client, (await begin(client, [line(1), "{oops", line(1), line(2, method="GET")]))["id"])
    assert batch["status"] == "failed"
    assert batch["failed_at"] >= batch["created_at"]
    assert batch["errors"]["object"] == "list"
    assert [(error["line"], error["code"]) for error in batch["errors"]["data"]] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_method"),
    ]
    assert batch["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert engine.requests == []


async def test_too_many_lines_fail(start: Start) -> None:
    worker = start(max_batch_lines=3)
    worker.start()
    batch = await ended(worker.client, (await begin(worker.client, [line(number) for number in range(4)]))["id"])
    assert batch["errors"]["data"][0]["code"] == "too_many_tasks"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input_file_id": None}, 400, "input_file_id"),
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"input_file_id": "../x"}, 400, "input_file_id"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"endpoint": "/v1/images/generations"}, 400, "endpoint"),
        ({"endpoint": "/v1/files"}, 400, "endpoint"),
        ({"endpoint": "/health"}, 400, "endpoint"),
        ({"endpoint": 7}, 400, "endpoint"),
        ({"completion_window": None}, 400, "completion_window"),
        ({"completion_window": "24"}, 400, "completion_window"),
        ({"completion_window": "0h"}, 400, "completion_window"),
        ({"completion_window": "31d"}, 400, "completion_window"),
        ({"completion_window": "9999999d"}, 400, "completion_window"),
        ({"completion_window": "２４h"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"metadata": {str(number): "x" for number in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"seconds": 3600}}, 400, "output_expires_after.anchor"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
    ],
)
async def test_a_wrong_batch_is_refused(
    client: httpx.AsyncClient, tmp_path: Path, fields: Body, status: int, param: str
) -> None:
    made = await upload(client, jsonl([line(1)]))
    asked = {"input_file_id": made["id"], "endpoint": CHAT, "completion_window": "24h", **fields}
    assert error_of(await client.post(BATCHES, json=asked), status)["param"] == param
    assert (await get(client, BATCHES))["data"] == []
    assert left_on_disk(tmp_path) == [made["id"]]


async def test_only_files_for_batches_are_taken(client: httpx.AsyncClient) -> None:
    made = await upload(client, jsonl([line(1)]), purpose="user_data")
    asked = {"input_file_id": made["id"], "endpoint": CHAT, "completion_window": "24h"}
    assert error_of(await client.post(BATCHES, json=asked), 400)["param"] == "input_file_id"


async def test_too_many_open_batches_are_refused_for_now(start: Start) -> None:
    client = start(max_batches=2).client
    made = await upload(client, jsonl([line(1)]))
    asked = {"input_file_id": made["id"], "endpoint": CHAT, "completion_window": "24h"}
    for _ in range(2):
        assert (await client.post(BATCHES, json=asked)).status_code == 200
    refused = await client.post(BATCHES, json=asked)
    assert "2 batches" in error_of(refused, 503)["message"]
    assert refused.headers["retry-after"]


async def test_lists_are_walked_the_newest_first(client: httpx.AsyncClient) -> None:
    made = [(await begin(client, [line(1)]))["id"] for _ in range(5)]
    first = (await client.get(BATCHES, params={"limit": 3})).json()
    assert [batch["id"] for batch in first["data"]] == made[:1:-1]
    assert (first["has_more"], first["last_id"]) == (True, made[2])
    rest = (await client.get(BATCHES, params={"after": first["last_id"]})).json()
    assert [batch["id"] for batch in rest["data"]] == made[1::-1]
    assert rest["has_more"] is False
    assert error_of(await client.get(BATCHES, params={"after": "no"}), 400)["param"] == "after"
    assert error_of(await client.get(BATCHES, params={"limit": "101"}), 400)["param"] == "limit"
    for batch_id in made:
        await ended(client, batch_id)


async def test_a_batch_belongs_to_the_key_that_made_it(start: Start, engine: ScriptedEngine) -> None:
    worker = start(api_keys=("k1", "k2"))
    worker.start()
    client = worker.client
    client.headers["authorization"] = "Bearer k1"
    body = {"model": MODEL, "input": "hi"}
    made = await begin(client, [line(1, url="/v1/responses", body=body)], endpoint="/v1/responses")
    batch = await ended(client, made["id"])
    (found,) = await results(client, batch["output_file_id"])
    response_id = found["response"]["body"]["id"]
    assert (await client.get(f"/v1/responses/{response_id}")).status_code == 200
    client.headers["authorization"] = "Bearer k2"
    error_of(await client.get(f"/v1/responses/{response_id}"), 404)
    error_of(await client.get(f"{BATCHES}/{made['id']}"), 404)
    error_of(await client.post(f"{BATCHES}/{made['id']}/cancel"), 404)
    error_of(await client.get(f"{FILES}/{batch['output_file_id']}"), 404)
    assert (await get(client, BATCHES))["data"] == []
    asked = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    error_of(await client.post(BATCHES, json=asked), 404)


def gated(model: TextModel, gate: asyncio.Event) -> Any:
    """A script that waits where somebody is in a hurry for nothing."""
    ids = model.tokenizer.encode("Hello there.", add_special=False)
    return lambda request, index: [ids[:2], *([gate] if request.priority else []), ids[2:]]


async def test_few_lines_are_in_flight_and_nobody_waits_for_them(
    start: Start, engine: ScriptedEngine, model: TextModel
) -> None:
    worker = start(batch_lines=3)
    worker.start()
    gate = asyncio.Event()
    engine.script = gated(model, gate)
    lines = [line(number, body=chat(priority=number % 2 * 50 - 25)) for number in range(9)]
    made = [await begin(worker.client, lines) for _ in range(2)]
    await until(lambda: len(engine.streams) == 3)
    assert (await whole(worker.client, chat()))["choices"][0]["message"]["content"] == "Hello there."
    assert engine.last.priority == 0
    assert len(engine.requests) == 4
    progress = await get(worker.client, f"{BATCHES}/{made[0]['id']}")
    assert (progress["status"], progress["request_counts"]["total"]) == ("in_progress", 9)
    gate.set()
    for batch in made:
        assert (await ended(worker.client, batch["id"]))["request_counts"]["completed"] == 9
    priorities = {request.priority for request in engine.requests}
    assert priorities == {0, 1000, 1025}


def has_asked(engine: ScriptedEngine, count: int) -> bool:
    return len(engine.requests) == count


async def test_progress_is_told_line_by_line(start: Start, engine: ScriptedEngine, model: TextModel) -> None:
    worker = start(batch_lines=1)
    worker.start()
    gates = [asyncio.Event() for _ in range(3)]
    words = model.tokenizer.encode("Hello there.", add_special=False)
    engine.script = lambda request, index: [gates[len(engine.requests) - 1], words]
    made = await begin(worker.client, [line(number) for number in range(3)])
    for number, gate in enumerate(gates):
        await until(partial(has_asked, engine, number + 1))
        counts = (await get(worker.client, f"{BATCHES}/{made['id']}"))["request_counts"]
        assert counts == {"total": 3, "completed": number, "failed": 0}
        gate.set()
    await ended(worker.client, made["id"])


@pytest.mark.parametrize("other", [False, True])
async def test_a_batch_is_cancelled_in_the_middle_by_any_worker(
    start: Start, engine: ScriptedEngine, model: TextModel, quick: None, other: bool
) -> None:
    worker, idle = start(batch_lines=2), start()
    worker.start()
    gate = asyncio.Event()
    words = model.tokenizer.encode("Hello there.", add_special=False)
    engine.script = lambda request, index: [words] if len(engine.requests) <= 3 else [words[:1], gate]
    made = await begin(worker.client, [*(line(number) for number in range(9)), line(9, body=chat(n=500))])
    await until(lambda: len(engine.requests) == 5)
    await until(lambda: len(engine.streams) == 2)
    client = (idle if other else worker).client
    cancelling = await client.post(f"{BATCHES}/{made['id']}/cancel")
    assert cancelling.status_code == 200
    assert cancelling.json()["status"] in ("cancelling", "cancelled")
    batch = await ended(client, made["id"])
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    assert batch["request_counts"] == {"total": 10, "completed": 3, "failed": 0}
    assert ids(await results(client, batch["output_file_id"])) == ["line-0", "line-1", "line-2"]
    undone = await results(client, batch["error_file_id"])
    assert ids(undone) == [f"line-{number}" for number in range(3, 10)]
    assert {(item["response"], item["error"]["code"]) for item in undone} == {(None, "batch_cancelled")}
    assert engine.streams == {}
    assert len(engine.aborted) == 2
    again = await client.post(f"{BATCHES}/{made['id']}/cancel")
    assert "status 'cancelled'" in error_of(again, 400)["message"]


async def test_a_batch_that_nobody_has_begun_is_cancelled(start: Start, quick: None) -> None:
    worker = start()
    made = await begin(worker.client, [line(1)])
    assert (await worker.client.post(f"{BATCHES}/{made['id']}/cancel")).json()["status"] == "cancelling"
    again = await worker.client.post(f"{BATCHES}/{made['id']}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "cancelling")
    worker.start()
    batch = await ended(worker.client, made["id"])
    assert (batch["status"], batch["output_file_id"], batch["error_file_id"]) == ("cancelled", None, None)


async def test_a_batch_ends_when_its_time_is_over(
    start: Start, engine: ScriptedEngine, model: TextModel, quick: None, clock: Clock
) -> None:
    worker = start(batch_lines=1)
    worker.start()
    words = model.tokenizer.encode("Hello there.", add_special=False)
    engine.script = lambda request, index: [words] if len(engine.requests) <= 2 else [words[:1], asyncio.Event()]
    made = await begin(worker.client, [line(number) for number in range(4)], completion_window="2h")
    await until(lambda: len(engine.requests) == 3 and engine.streams)
    clock.ahead_s = 2 * 3600
    batch = await ended(worker.client, made["id"])
    assert batch["status"] == "expired"
    assert batch["expired_at"] >= batch["expires_at"] == made["created_at"] + 2 * 3600
    assert ids(await results(worker.client, batch["output_file_id"])) == ["line-0", "line-1"]
    undone = await results(worker.client, batch["error_file_id"])
    assert [(item["custom_id"], item["error"]["code"]) for item in undone] == [
        ("line-2", "batch_expired"),
        ("line-3", "batch_expired"),
    ]
    assert engine.streams == {}


async def test_deleting_the_input_disturbs_nothing_and_nothing_is_left(
    start: Start, engine: ScriptedEngine, model: TextModel, tmp_path: Path
) -> None:
    worker = start()
    worker.start()
    gate = asyncio.Event()
    engine.script = gated(model, gate)
    made = await begin(worker.client, [line(number) for number in range(20)])
    await until(lambda: engine.streams)
    await worker.client.delete(f"{FILES}/{made['input_file_id']}")
    gate.set()
    batch = await ended(worker.client, made["id"])
    assert batch["request_counts"]["completed"] == 20
    await until(lambda: left_on_disk(tmp_path) == [batch["output_file_id"]])
    await until(lambda: not worker.services.lifecycle.num_active)


async def test_the_results_go_when_they_were_told_to(client: httpx.AsyncClient) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    batch = await ended(client, (await begin(client, [line(1)], output_expires_after=expiry))["id"])
    written = await get(client, f"{FILES}/{batch['output_file_id']}")
    assert written["expires_at"] == written["created_at"] + 7200


async def test_an_engine_that_is_full_is_asked_again(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.refusal = QueueFull(3)
    made = await begin(client, [line(number) for number in range(5)])
    await until(lambda: engine.num_refused > 5)
    assert (await get(client, f"{BATCHES}/{made['id']}"))["request_counts"] == {"total": 5, "completed": 0, "failed": 0}
    engine.refusal = None
    assert (await ended(client, made["id"]))["request_counts"]["completed"] == 5


async def test_a_line_under_which_the_engine_keeps_dying_is_given_up(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.batches.making._FIRST_PAUSE_S", 0.001)
    fine = says(model, "Hello there.")
    engine.script = lambda request, index: (
        [EngineStopped("it died")] if request.sampling.seed == 7 else fine(request, 0)
    )
    lines = [line(0), line(1, body=chat(seed=7)), line(2)]
    batch = await ended(client, (await begin(client, lines))["id"])
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 3, "completed": 2, "failed": 1})
    (bad,) = await results(client, batch["error_file_id"])
    assert bad["response"]["status_code"] == 503
    assert bad["response"]["body"]["error"]["code"] == "engine_stopped"


async def test_a_fault_of_ours_is_one_failed_line(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(body: ChatRequest, settings: Settings) -> None:
        if body.seed == 7:
            raise RuntimeError("secret")

    monkeypatch.setattr("gateway.routes.chat.check_limits", fail)
    batch = await ended(client, (await begin(client, [line(1), line(2, body=chat(seed=7))]))["id"])
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    (bad,) = await results(client, batch["error_file_id"])
    assert (bad["response"]["status_code"], bad["response"]["body"]["error"]["code"]) == (500, "internal_error")
    assert "secret" not in json.dumps(bad)


async def answer_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is done with every request."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def test_ten_thousand_lines_are_never_held_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    held = most = 0
    make = Line.__init__

    def counted(self: Line, number: int, text: bytes | None) -> None:
        nonlocal held, most
        held += 1
        most = max(most, held)
        make(self, number, text)

    def gone(self: Line) -> None:
        nonlocal held
        held -= 1

    monkeypatch.setattr(Line, "__init__", counted)
    monkeypatch.setattr(Line, "__del__", gone, raising=False)
    worker = start(batch_lines=64)
    monkeypatch.setattr(worker.services.runner.tools.calls, "_app", answer_at_once)
    worker.start()
    lines = [line(number) for number in range(10_000)]
    batch = await ended(worker.client, (await begin(worker.client, lines))["id"])
    assert batch["request_counts"] == {"total": 10_000, "completed": 10_000, "failed": 0}
    # Those in flight, the ones read ahead, and the next ones that are being read.
    assert most <= 64 + 3 * 64 + 1
    content = await worker.client.get(f"{FILES}/{batch['output_file_id']}/content")
    assert [json.loads(found)["custom_id"] for found in content.text.splitlines()] == ids(lines)
