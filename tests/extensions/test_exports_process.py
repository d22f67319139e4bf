"""Exports of a real engine process: imports go on as a fresh prompt does, whoever made them and whatever went away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.connection import EngineConnection
from engine.contexts.commands import ReleaseExport
from engine.errors import EngineStopped
from engine.process import EngineProcess
from engine.text.model import TextModel
from extensions.exports import Recipe
from extensions.runtime import Runtime
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used
from tests.tiny_models import write_tiny_model

IDS = list(range(3, 90))
MORE = [5, 6, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture
def process(model: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess(engine_config(model, "torch"), f"ipc://{tmp_path}/engine.sock") as engine:
        engine.wait_ready(60)
        yield engine


@pytest.fixture
async def runtime(process: EngineProcess, model: Path) -> AsyncIterator[Runtime]:
    """The worker that stays."""
    connection = await connect(process)
    yield Runtime(connection, TextModel.load(model))
    await connection.close()


async def connect(process: EngineProcess) -> EngineConnection:
    connection = EngineConnection(process.endpoint)
    await connection.connect(30)
    return connection


async def fresh(runtime: Runtime, token_ids: list[int]) -> list[int]:
    """What a prompt that shares nothing with anybody is continued with."""
    context = runtime.open_context(token_ids, salt="nobody else's")
    try:
        return await go_on(context, asked())
    finally:
        context.release()


async def export(process: EngineProcess, runtime: Runtime, export_id: str, *, edits: bool = False) -> Recipe:
    """Another worker exports a history, and goes away."""
    leaving = await connect(process)
    context = Runtime(leaving, runtime.text).open_context(IDS, account="a", salt="a")
    await context.prefill()
    if edits:
        context.drop(20, 60)
        await context.prefill()
    context.export(export_id, 3600)
    await context.info()
    recipe = Recipe(token_ids=list(context.token_ids), edits=context.edits)
    await leaving.close()
    return recipe


@pytest.mark.parametrize("salt", ["a", "b"])
async def test_an_import_by_another_worker_goes_on_as_a_fresh_prompt_does(
    process: EngineProcess, runtime: Runtime, salt: str
) -> None:
    recipe = await export(process, runtime, "x")
    imported = await runtime.import_context(recipe, "x", account="b", salt=salt)
    assert imported.is_warm
    imported.live.append(MORE)
    assert await go_on(imported.live, asked()) == await fresh(runtime, [*IDS, *MORE])
    imported.live.release()
    assert (await runtime.engine.describe_context("x")).num_computed == len(IDS)
    runtime.engine.tell(ReleaseExport("x"))
    await no_page_is_used(runtime.engine)


async def test_what_was_dropped_is_dropped_in_imports_warm_and_cold(process: EngineProcess, runtime: Runtime) -> None:
    recipe = await export(process, runtime, "x", edits=True)
    warm = await runtime.import_context(recipe, "x", account="b", salt="a")
    cold = await runtime.import_context(recipe, "nothing", account="b", salt="c")
    assert (warm.is_warm, cold.num_computed) == (True, 0)
    found = [await go_on(one.live, asked()) for one in (warm, cold)]
    assert found[0] == found[1] != await fresh(runtime, IDS)
    warm.live.release()
    cold.live.release()


async def test_a_forked_import_goes_on_like_it(process: EngineProcess, runtime: Runtime) -> None:
    recipe = await export(process, runtime, "x")
    imported = await runtime.import_context(recipe, "x", account="b", salt="b")
    forks = imported.live.fork(3)
    for fork in forks:
        fork.append(MORE)
    answers = await asyncio.gather(*(go_on(fork, asked()) for fork in forks))
    assert answers == [await fresh(runtime, [*IDS, *MORE])] * 3
    for one in (*forks, imported.live):
        one.release()


async def test_after_a_restart_of_the_engine_an_import_is_computed_again_and_right(
    process: EngineProcess, model: Path
) -> None:
    connection = await connect(process)
    runtime = Runtime(connection, TextModel.load(model))
    recipe = await export(process, runtime, "x")
    expected = await fresh(runtime, [*IDS, *MORE])
    held = await runtime.import_context(recipe, "x", account="b", salt="b")
    generation = await held.live.generate(asked(max_tokens=400))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineStopped):
        async for _ in generation:
            pass
    process.stop()
    with EngineProcess(process.config, process.endpoint) as successor:
        successor.wait_ready(60)
        await connection.connect(30)
        imported = await runtime.import_context(recipe, "x", account="b", salt="b")
        assert imported.num_computed == 0
        for one in (imported.live, held.live):
            one.append(MORE)
            assert await go_on(one, asked()) == expected
            one.release()
        await no_page_is_used(connection)
    await connection.close()
