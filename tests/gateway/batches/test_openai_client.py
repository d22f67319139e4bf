"""The official client's files and batches, on a real server over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from engine.text.model import TextModel
from tests.fakes import RunningServer, ScriptedEngine, running_server
from tests.gateway.batches.wire import OVER, jsonl, line
from tests.gateway.wire import chat


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str, tmp_path: Path) -> Iterator[RunningServer]:
    """A real server with a key, a store and a directory."""
    with running_server(engine, model, redis_url=redis_url, files_dir=str(tmp_path), api_keys=("k1",)) as server:
        yield server


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client, without retries."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k1", max_retries=0) as sdk:
        yield sdk


async def test_files_are_uploaded_walked_read_and_deleted(sdk: openai.AsyncOpenAI, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"{}\n" * 100_000)
    made = await sdk.files.create(
        file=path, purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (made.filename, made.bytes, made.object, made.status) == ("some.jsonl", 300_000, "file", "processed")
    assert made.expires_at == made.created_at + 3600
    other = await sdk.files.create(file=b"x", purpose="vision")
    assert await sdk.files.retrieve(made.id) == made
    assert [item async for item in sdk.files.list(limit=1)] == [other, made]
    assert [item.id async for item in sdk.files.list(purpose="vision", order="asc")] == [other.id]
    assert (await sdk.files.content(made.id)).read() == path.read_bytes()
    async with sdk.files.with_streaming_response.content(made.id) as streamed:
        assert sum([len(part) async for part in streamed.iter_bytes()]) == 300_000
    assert (await sdk.files.wait_for_processing(made.id)).id == made.id
    assert (await sdk.files.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError) as error:
        await sdk.files.retrieve(made.id)
    assert error.value.param == "file_id"


async def test_a_batch_is_made_polled_and_read(sdk: openai.AsyncOpenAI) -> None:
    lines = [line(number) for number in range(5)] + [line(5, body=chat(temperature=9))]
    file = await sdk.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    batch = await sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    while batch.status not in OVER:
        await asyncio.sleep(0.02)
        batch = await sdk.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (6, 5, 1)
    assert batch.usage is not None
    assert batch.usage.total_tokens > 0
    assert batch.metadata == {"a": "b"}
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    found = [json.loads(text) for text in (await sdk.files.content(batch.output_file_id)).text.splitlines()]
    assert {item["response"]["body"]["choices"][0]["message"]["content"] for item in found} == {"Hello there."}
    (bad,) = (await sdk.files.content(batch.error_file_id)).text.splitlines()
    assert json.loads(bad)["response"]["body"]["error"]["param"] == "temperature"
    assert [item.id async for item in sdk.batches.list(limit=1)] == [batch.id]
    with pytest.raises(openai.BadRequestError, match="status 'completed'"):
        await sdk.batches.cancel(batch.id)


async def test_a_batch_is_cancelled(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], 1000.0]
    file = await sdk.files.create(file=("in.jsonl", jsonl([line(number) for number in range(20)])), purpose="batch")
    batch = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while not engine.streams:  # noqa: ASYNC110 - it lives in another thread
        await asyncio.sleep(0.01)
    assert (await sdk.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    while batch.status not in OVER:
        await asyncio.sleep(0.02)
        batch = await sdk.batches.retrieve(batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None


async def test_faults_of_an_input_are_told(sdk: openai.AsyncOpenAI) -> None:
    file = await sdk.files.create(file=("in.jsonl", jsonl([line(1, body=chat(model="gpt-4"))])), purpose="batch")
    batch = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    while batch.status not in OVER:
        await asyncio.sleep(0.02)
        batch = await sdk.batches.retrieve(batch.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    (fault,) = batch.errors.data
    assert (fault.code, fault.line, fault.param) == ("model_not_found", 1, "body.model")


async def test_a_wrong_endpoint_arrives_as_its_class(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await sdk.batches.create(input_file_id="file-x", endpoint="/v1/moderations", completion_window="24h")
    assert error.value.param == "endpoint"
