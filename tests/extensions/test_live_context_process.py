"""Live contexts over an engine process: what becomes of them when either side goes away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.connection import EngineConnection
from engine.errors import EngineStopped
from engine.process import EngineProcess
from engine.text.model import TextModel
from extensions.runtime import Runtime
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess(engine_config(model, "torch"), f"ipc://{tmp_path}/engine.sock") as engine:
        engine.wait_ready(60)
        yield engine


async def connect(process: EngineProcess) -> EngineConnection:
    connection = EngineConnection(process.endpoint)
    await connection.connect(30)
    return connection


async def test_a_gateway_that_goes_away_leaves_none_of_its_contexts_behind(process: EngineProcess, model: Path) -> None:
    text = TextModel.load(model)
    leaving, staying = await connect(process), await connect(process)
    context = Runtime(leaving, text).open_context(list(range(3, 90)))
    other = Runtime(staying, text).open_context(list(range(3, 50)))
    await context.prefill()
    context.fork(5)
    await other.prefill()
    generation = await context.generate(asked(max_tokens=400))
    await anext(generation)
    await leaving.close()
    for _ in range(1200):
        if staying.stats.num_used_pages == 3 and staying.stats.num_running == 0:
            break
        await asyncio.sleep(0.05)
    assert staying.stats.num_used_pages == 3
    assert (await other.info()).residency == "device"
    other.release()
    await no_page_is_used(staying)
    await staying.close()


async def test_a_context_goes_on_in_the_next_engine_with_its_tokens_and_its_edits(
    process: EngineProcess, model: Path
) -> None:
    connection = await connect(process)
    runtime = Runtime(connection, TextModel.load(model))
    context = runtime.open_context(list(range(3, 90)))
    first = await go_on(context, asked(max_tokens=4))
    (fork,) = context.fork()
    fork.drop(0, 48)
    before = (list((await context.next(top=-1)).logprobs), list((await fork.next(top=-1)).logprobs))
    generation = await context.generate(asked(max_tokens=400))
    await anext(generation)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineStopped):
        async for _ in generation:
            pass
    assert context.token_ids == [*range(3, 90), *first]
    with pytest.raises(EngineStopped):
        await context.prefill()
    process.stop()
    with EngineProcess(process.config, process.endpoint) as successor:
        successor.wait_ready(60)
        await connection.connect(30)
        after = (list((await context.next(top=-1)).logprobs), list((await fork.next(top=-1)).logprobs))
        assert after[0] == pytest.approx(before[0], abs=1e-3)
        assert after[1] == pytest.approx(before[1], abs=1e-3)
        context.release()
        fork.release()
        await no_page_is_used(connection)
    await connection.close()


async def test_an_engine_that_lost_a_context_is_told_it_again(process: EngineProcess, model: Path) -> None:
    connection = await connect(process)
    runtime = Runtime(connection, TextModel.load(model))
    context = runtime.open_context(list(range(3, 20)))
    expected = await go_on(runtime.open_context(list(range(3, 20))), asked(max_tokens=4))
    await context.prefill()
    context._link.release()
    context._link._epoch = connection.info.epoch
    assert await go_on(context, asked(max_tokens=4)) == expected
    await connection.close()
