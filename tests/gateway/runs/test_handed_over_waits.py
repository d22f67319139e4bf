"""A stop hands runs over at once that wait, whatever for; what they wait for takes place once, elsewhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.text.model import TextModel
from gateway.runs import watching
from gateway.state.run_mail import MailBounds
from tests.extensions.tools.service import Service, served
from tests.fakes import ScriptedEngine
from tests.gateway.runs.workers import RUNS, Worker, begin, ended, get, until


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are handed over are gone on with at once."""
    monkeypatch.setattr(watching, "LOOK_S", 0.02)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Answers when it is told to."""
    one = Service()
    async with served(one.app()) as url:
        one.url = url
        yield one
        one.release.set()


@pytest.fixture
async def pair(
    engine: ScriptedEngine, model: TextModel, redis_url: str, service: Service, tmp_path: Path
) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two workers with an operator's tools that take long, and queues of one message."""
    common = {"kind": "http", "http": {"url": f"{service.url}/slow"}, "timeout_s": 500}
    names = {"look": "pure", "order": "idempotent"}
    path = tmp_path / "tools.json"
    path.write_text(json.dumps({"tools": [{"name": name, "effect": one, **common} for name, one in names.items()]}))
    settings = {"tools_file": str(path), "tool_hosts": ("127.0.0.1",), "tool_networks": ("127.0.0.0/8",)}
    workers = Worker(engine, model, redis_url, **settings), Worker(engine, model, redis_url, **settings)
    for worker in workers:
        mail = worker.services.programs.doors.mail
        assert mail is not None
        mail.bounds = MailBounds(messages=1)
    yield workers
    for worker in workers:
        await worker.close()
    assert engine.streams == {}
    assert engine.contexts.histories == {}


async def leave(worker: Worker) -> None:
    """Drains a worker for as long as it likes; nothing that its runs wait for comes meanwhile."""
    worker.services.detached_runs.begin_drain()
    await until(lambda: not worker.services.detached_runs.num_running)


async def has_said(worker: Worker, run_id: str) -> bool:
    return bool((await get(worker.ann, f"/{run_id}"))["last_sequence_number"] >= 1)


async def test_a_program_that_waits_for_room_in_a_queue_pushes_once_in_its_next_life(
    pair: tuple[Worker, Worker],
) -> None:
    here, there = pair
    source = "await lm.push('q', 1)\nawait lm.emit('on')\nawait lm.push('q', 2, timeout_s=None)\nreturn [3]"
    run = await begin(here.ann, source)
    await until(lambda: has_said(there, run["id"]))
    bells = here.services.programs.doors.bells
    assert bells is not None
    await until(lambda: bells.num_listening)
    await leave(here)
    there.services.detached_runs.watch()
    pulls = (
        "found = [await lm.pull('q'), await lm.pull('q')]\ntry:\n    found.append(await lm.pull('q', timeout_s=0))\n"
    )
    pulled = await begin(there.ann, f"{pulls}except TimeoutError:\n    return found")
    assert (await ended(there.ann, pulled["id"]))["result"] == [1, 2]
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"], done["lives"]) == ("completed", [3], 2)


@pytest.mark.parametrize(
    "source",
    [
        "return [await lm.tool('look')]",
        "return [await lm.tool('order')]",
        "call = await lm.start_tool('order', {})\nreturn [await call.result()]",
        "return [(await lm.http.get('URL/slow', timeout_s=100)).text]",
    ],
)
async def test_what_may_be_asked_again_is_asked_again_elsewhere(
    pair: tuple[Worker, Worker], service: Service, source: str
) -> None:
    here, there = pair
    run = await begin(here.ann, source.replace("URL", service.url))
    await until(service.called.is_set)
    await leave(here)
    await until(service.given_up.is_set)
    service.release.set()
    there.services.detached_runs.watch()
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"], done["lives"]) == ("completed", ["done"], 2)
    keys = [headers.get("idempotency-key") for _, _, headers, _ in service.calls]
    assert len(keys) == 2
    if "order" in source:
        assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "wait",
    [
        "await lm.receive()",
        "await lm.sleep(250)",
        "await lm.pull('q')",
        "await (await lm.subscribe('t')).next()",
        "await lm.run_source('async def main(request, lm):\\n    await lm.pull(\"q\")\\n')",
    ],
)
async def test_other_waits_hold_nothing_up_either(pair: tuple[Worker, Worker], wait: str) -> None:
    here, there = pair
    run = await begin(here.ann, f"await lm.emit('on')\n{wait}")
    await until(lambda: has_said(there, run["id"]))
    await leave(here)
    assert (await get(there.ann, f"/{run['id']}"))["status"] == "in_progress"
    there.services.detached_runs.watch()
    await there.ann.post(f"{RUNS}/{run['id']}/cancel")
    assert (await ended(there.ann, run["id"]))["status"] == "cancelled"
