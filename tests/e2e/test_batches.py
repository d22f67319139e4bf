"""Batches on whole servers: processes are killed in the middle, and every line ends exactly once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai.types import Batch

from loadtests.server import RunningServer, running_server
from tests.e2e.test_kills import processes
from tests.fakes import MODEL

PATIENCE_S = 120.0
NUM_LINES = 60


def connect(server: RunningServer) -> openai.OpenAI:
    """The official client; it tries again while a worker that answers is being killed."""
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=5, timeout=60)


def begin(client: openai.OpenAI, bodies: list[dict[str, Any]], endpoint: str = "/v1/completions") -> Batch:
    """A batch of requests that are called after their place."""
    lines = [
        {"custom_id": str(number), "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
        for number, body in enumerate(bodies)
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")  # type: ignore[arg-type]


def until(client: openai.OpenAI, batch_id: str, condition: Callable[[Batch], bool]) -> Batch:
    """Polls until something holds of a batch."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        batch = client.batches.retrieve(batch_id)
        if condition(batch):
            return batch
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.05)


def num_done(batch: Batch) -> int:
    """Lines that are done."""
    assert batch.request_counts is not None
    return batch.request_counts.completed + batch.request_counts.failed


def check_results(client: openai.OpenAI, batch_id: str, bodies: list[dict[str, Any]]) -> None:
    """Waits for the end; every line must be there once, and be what the same request is answered now."""
    batch = until(client, batch_id, lambda batch: batch.status not in ("validating", "in_progress", "finalizing"))
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (len(bodies), 0)
    assert batch.output_file_id is not None
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [item["custom_id"] for item in found] == [str(number) for number in range(len(bodies))]
    for number in (0, len(bodies) // 2, len(bodies) - 1):
        again = client.completions.create(model=MODEL, **bodies[number])
        assert found[number]["response"]["body"]["choices"][0]["text"] == again.choices[0].text


def bodies() -> list[dict[str, Any]]:
    """Requests that take a while, each with an answer of its own."""
    return [{"prompt": f"number {number}", "max_tokens": 40, "temperature": 0} for number in range(NUM_LINES)]


def serve(model: Path, options: list[str], tmp_path: Path, name: str) -> Any:
    """A server with two workers that keeps its state in `tmp_path`."""
    environment = {"OMP_NUM_THREADS": "1", "WYE_STATE_DIR": str(tmp_path / "state"), "WYE_BATCH_LINES": "4"}
    args = [*options, "--workers", "2", "--kv-pages", "640"]
    return running_server(str(model), args=args, environment=environment, log_path=tmp_path / name)


def test_killed_workers_and_a_killed_engine_lose_and_repeat_nothing(
    tiny_model: Path, start_options: list[str], tmp_path: Path
) -> None:
    asked = bodies()
    with serve(tiny_model, start_options, tmp_path, "log") as server, connect(server) as client:
        batch = begin(client, asked)
        until(client, batch.id, lambda batch: num_done(batch) >= 5)
        for worker in processes(server, "gateway.worker"):
            worker.kill()
        until(client, batch.id, lambda batch: num_done(batch) >= 20)
        (engine,) = processes(server, "engine.child")
        engine.kill()
        until(client, batch.id, lambda batch: num_done(batch) >= 40)
        processes(server, "gateway.worker")[0].kill()
        check_results(client, batch.id, asked)


def test_the_next_server_goes_on_with_the_batches_of_a_killed_one(
    tiny_model: Path, start_options: list[str], tmp_path: Path
) -> None:
    asked = bodies()
    with serve(tiny_model, start_options, tmp_path, "first") as server, connect(server) as client:
        batch = begin(client, asked)
        before = until(client, batch.id, lambda batch: num_done(batch) >= 10)
        children = psutil.Process(server.pid).children(recursive=True)
        os.kill(server.pid, signal.SIGKILL)
        psutil.wait_procs(children, timeout=PATIENCE_S)
    with serve(tiny_model, start_options, tmp_path, "second") as server, connect(server) as client:
        assert num_done(client.batches.retrieve(batch.id)) >= num_done(before)
        check_results(client, batch.id, asked)


@pytest.mark.real_model
def test_a_real_model_answers_a_batch_as_it_answers_anybody(real_server: RunningServer) -> None:
    messages = [[{"role": "user", "content": f"Name {what}."}] for what in ("a colour", "a fruit", "a city")]
    asked = [{"messages": turns, "max_tokens": 12, "temperature": 0} for turns in messages]
    with connect(real_server) as client:
        batch = begin(client, asked, "/v1/chat/completions")
        done = until(client, batch.id, lambda batch: batch.status == "completed")
        assert done.output_file_id is not None
        for line in client.files.content(done.output_file_id).text.splitlines():
            found = json.loads(line)
            body = asked[int(found["custom_id"])]
            whole = client.chat.completions.create(model=MODEL, **body)  # type: ignore[call-overload]
            said = found["response"]["body"]["choices"][0]["message"]["content"]
            assert said
            assert said == whole.choices[0].message.content
