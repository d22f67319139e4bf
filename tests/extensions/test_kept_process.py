"""What is left to a real engine process is kept there when whoever left it is gone, charged, and given up in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from engine.connection import EngineConnection
from engine.kv.overview import KVMap
from engine.process import EngineProcess
from engine.text.model import TextModel
from extensions.runtime import Runtime
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used
from tests.tiny_models import write_tiny_model

IDS = list(range(3, 90))
MAX_BYTES = 2**40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(scope="module")
def process(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    path = tmp_path_factory.mktemp("run") / "engine.sock"
    with EngineProcess(engine_config(model, "torch"), f"ipc://{path}") as engine:
        engine.wait_ready(60)
        yield engine


async def connect(process: EngineProcess, model: Path) -> Runtime:
    connection = EngineConnection(process.endpoint)
    await connection.connect(30)
    return Runtime(connection, TextModel.load(model))


@pytest.fixture
async def runtime(process: EngineProcess, model: Path) -> AsyncIterator[Runtime]:
    """The worker that stays."""
    runtime = await connect(process, model)
    yield runtime
    await runtime.engine.close()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it has not come to that")


async def leave(process: EngineProcess, model: Path, *, ttl_s: float, max_bytes: int = MAX_BYTES) -> tuple[int, int]:
    """A worker answers, leaves the history to the engine and goes away; returns tokens and pages that are kept."""
    leaving = await connect(process, model)
    context = leaving.open_context(IDS, account="a", salt="a")
    await go_on(context, asked())
    kept = await context.hand_over(ttl_s=ttl_s, max_bytes=max_bytes, value=0.9, max_kept=4)
    await leaving.engine.close()
    return kept.length, kept.num_pages


def level_kib(runtime: Runtime) -> int:
    charge = runtime.engine.charges.get("a")
    return 0 if charge is None else charge.level_kib


async def test_it_is_held_and_charged_without_its_worker_until_its_time_is_over(
    process: EngineProcess, model: Path, runtime: Runtime
) -> None:
    length, num_pages = await leave(process, model, ttl_s=3600)
    assert length == len(IDS) + 8
    page_kib = runtime.engine.info.page_kib
    await until(lambda: level_kib(runtime) == num_pages * page_kib and runtime.engine.stats.num_leases == 1)
    assert await leave(process, model, ttl_s=0.1) == (length, num_pages)
    await until(lambda: level_kib(runtime) == 0 and runtime.engine.stats.num_leases == 0)
    await no_page_is_used(runtime.engine)


async def test_what_is_not_kept_is_told_and_freed_at_once(
    process: EngineProcess, model: Path, runtime: Runtime
) -> None:
    assert await leave(process, model, ttl_s=3600, max_bytes=1) == (0, 0)
    await no_page_is_used(runtime.engine)
    assert runtime.engine.stats.num_leases == 0


async def test_a_map_of_the_pool_tells_who_pays_for_which_pages(
    process: EngineProcess, model: Path, runtime: Runtime
) -> None:
    _, num_pages = await leave(process, model, ttl_s=3600)
    held = runtime.open_context(IDS[:40], account="b", salt="b")
    await held.prefill()
    drawn = await eventually(runtime, lambda drawn: {one.account for one in drawn.holders} == {"a", "b"})
    kept, context = sorted(drawn.holders, key=lambda one: one.account)
    assert (kept.kind, kept.num_pages, kept.value) == ("kept", num_pages, 0.9)
    assert (context.kind, context.num_pages, context.value) == ("context", 3, None)
    runs = drawn.device.runs
    assert sum(runs[::3]) == drawn.device.num_pages == runtime.engine.info.num_pages
    held.release()
    await leave(process, model, ttl_s=0.1)
    await eventually(runtime, lambda drawn: not drawn.holders)


async def eventually(runtime: Runtime, condition: Callable[[KVMap], bool]) -> KVMap:
    """Maps are drawn anew only after a moment."""
    for _ in range(1200):
        if condition(drawn := await runtime.engine.describe_kv()):
            return drawn
        await asyncio.sleep(0.05)
    raise AssertionError("no map is so")
