"""Limits of the KV that a run and its children hold and are charged, over a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from extensions.errors import ArgumentsInvalid, ScriptLimitExceeded
from extensions.programs.guard import Guard
from extensions.programs.limits import ProgramLimits
from extensions.programs.program import Program
from extensions.programs.world import World
from tests.extensions.programs.stage import Stage, main_of, until
from tests.tiny_models import write_tiny_model

HOLD = """
held = []
for number in range(3):
    ctx = await lm.context()
    start = 30 + number + request.args.get("start", 0)
    await ctx.append([start + at % 40 for at in range(60)])
    await ctx.prefill()
    held.append(ctx)
"""

WAIT = """
while True:
    await lm.sleep(0.05)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=64)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine
        await until(lambda: engine.stats.num_used_pages == 0)


class Sources:
    """Lets a run start what it brings."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def find(self, name: str) -> Program:
        raise LookupError(f"extension_not_found: {name}")

    async def check(self, source: str) -> Program:
        return await self._stage.runtime.check_program(source)


@pytest.fixture
async def stage(engine: EngineConnection, directory: Path) -> AsyncIterator[Stage]:
    made = Stage(engine, TextModel.load(directory))
    made.world = World(children=Sources(made))
    yield made
    await made.aclose()


async def held_bytes(stage: Stage) -> int:
    """Bytes of one of the contexts above."""
    found = await stage.value(HOLD + "return [(await one.info()).bytes for one in held]")
    assert len(set(found)) == 1
    assert isinstance(found[0], int)
    return found[0]


async def test_a_run_that_holds_too_much_at_once_is_ended(stage: Stage) -> None:
    size = await held_bytes(stage)
    assert (await stage.run(main_of(HOLD + "return len(held)"), limits={"kv_bytes": 3 * size})).result == 3
    with pytest.raises(ScriptLimitExceeded) as caught:
        await stage.run(main_of(HOLD + WAIT), limits={"kv_bytes": 3 * size - 1})
    assert (caught.value.limit, caught.value.used, caught.value.allowed) == ("kv_bytes", 3 * size, 3 * size - 1)


async def test_what_forks_share_counts_once(stage: Stage) -> None:
    size = await held_bytes(stage)
    body = """
ctx = await lm.context()
await ctx.append([30 + at % 40 for at in range(60)])
await ctx.prefill()
copies = await ctx.fork(8)
await lm.sleep(0.5)
return len(copies)
"""
    assert (await stage.run(main_of(body), limits={"kv_bytes": size})).result == 8


async def test_a_run_that_ends_over_a_limit_ends_with_it(stage: Stage) -> None:
    size = await held_bytes(stage)
    with pytest.raises(ScriptLimitExceeded) as caught:
        await stage.run(main_of(HOLD + "return len(held)"), limits={"kv_bytes": size})
    assert caught.value.limit == "kv_bytes"


async def test_a_run_that_was_charged_too_much_is_ended_whatever_it_has_released(stage: Stage) -> None:
    body = """
while True:
    ctx = await lm.context()
    await ctx.append([30 + at % 40 for at in range(60)])
    await ctx.prefill()
    await lm.sleep(0.05)
    await ctx.release()
"""
    with pytest.raises(ScriptLimitExceeded) as caught:
        await stage.run(main_of(body), limits={"kv_byte_seconds": 0.3 * await held_bytes(stage)})
    assert caught.value.limit == "kv_byte_seconds"
    assert caught.value.used > caught.value.allowed


@pytest.mark.parametrize("limit", ["kv_bytes", "kv_byte_seconds"])
async def test_what_children_hold_counts_for_their_parent(stage: Stage, limit: str) -> None:
    size = await held_bytes(stage)
    child = repr(main_of(HOLD + WAIT))
    body = f'await asyncio.gather(*[lm.run_source({child}, {{"start": 3 * number}}) for number in range(2)])'
    with pytest.raises(ScriptLimitExceeded) as caught:
        await stage.run(main_of(body), limits={"wall_s": 60, limit: 4 * size if limit == "kv_bytes" else 1.5 * size})
    assert caught.value.limit == limit


async def test_a_child_has_no_more_than_its_parent_has_left() -> None:
    parent = Guard(ProgramLimits(kv_bytes=1000, kv_byte_seconds=50.0))
    assert parent.left_of(ProgramLimits()).kv_bytes == 1000
    assert parent.left_of(ProgramLimits(kv_bytes=10, kv_byte_seconds=5.0)).kv_bytes == 10
    assert Guard(ProgramLimits()).left_of(ProgramLimits()).kv_byte_seconds is None
    assert not Guard(ProgramLimits()).limits_kv
    assert Guard(ProgramLimits(), parent).limits_kv


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kv_bytes": 1.5}, "limits.kv_bytes must be a whole number"),
        ({"kv_bytes": 0}, "limits.kv_bytes must be a positive number"),
        ({"kv_byte_seconds": 11.0}, "limits.kv_byte_seconds must be at most 10 here, got 11"),
    ],
)
def test_limits_that_cannot_be_are_refused(asked: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentsInvalid, match=message):
        ProgramLimits(kv_byte_seconds=10.0).narrowed(asked)


def test_a_limit_may_be_asked_for_where_there_is_none() -> None:
    found = ProgramLimits().narrowed({"kv_bytes": 4096, "kv_byte_seconds": 2.5})
    assert (found.kv_bytes, found.kv_byte_seconds) == (4096, 2.5)
