"""Which programs run now is known in every process of a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, cast

import pytest

from extensions.programs.program import Program
from extensions.programs.request import ProgramRequest, ProgramUsage
from extensions.programs.run import ProgramRun
from gateway.programs import live
from gateway.programs.live import LivePrograms
from gateway.state.link import connect
from gateway.state.tenancy import TenancyStore
from gateway.tenancy.directory import Directory
from tests.e2e.gauges import until
from tests.gateway.tenancy.conftest import BY


@dataclass(eq=False)
class Running:
    """As much of a run as is told of it."""

    request: ProgramRequest
    program: Program = field(default_factory=lambda: Program(source="", digest="0" * 64, name="one"))
    usage: ProgramUsage = field(default_factory=ProgramUsage)
    num_contexts: int = 2
    ends: list[Callable[[], None]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def end(self, error: Exception) -> None:
        self.errors.append(error)

    def on_end(self, callback: Callable[[], None]) -> None:
        self.ends.append(callback)


def begin(programs: LivePrograms, run_id: str, owner: str = "somebody") -> Running:
    run = Running(ProgramRequest(id=run_id))
    programs.add(cast("ProgramRun", run), owner)
    return run


async def ids(programs: LivePrograms) -> list[str]:
    return [str(one["id"]) for one in await programs.all()]


@pytest.fixture
async def two(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[LivePrograms, LivePrograms]]:
    """Two processes of one server."""
    monkeypatch.setattr(live, "PERIOD_S", 0.02)
    one, other = LivePrograms(connect(redis_url)), LivePrograms(connect(redis_url))
    yield one, other
    await one.aclose()
    await other.aclose()


async def test_another_process_hears_of_a_program_and_of_its_end(two: tuple[LivePrograms, LivePrograms]) -> None:
    one, other = two
    run = begin(one, "run-1")
    assert await ids(one) == ["run-1"]
    await until(lambda: _are(other, ["run-1"]))
    (told,) = await other.all()
    assert (told["program"], told["tenant"], told["contexts"]) == ("one", "somebody", 2)
    run.ends[0]()
    assert await ids(one) == []
    await until(lambda: _are(other, []))


async def test_a_program_that_begins_as_the_last_one_ends_is_told_too(two: tuple[LivePrograms, LivePrograms]) -> None:
    one, other = two
    for number in range(20):
        run = begin(one, f"run-{number}")
        await until(lambda number=number: _are(other, [f"run-{number}"]))  # type: ignore[misc]
        run.ends[0]()
        await asyncio.sleep(0.001 * number)
    await until(lambda: _are(other, []))


async def test_a_process_that_is_heard_of_no_more_is_forgotten(
    two: tuple[LivePrograms, LivePrograms], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    monkeypatch.setattr(live, "FORGOTTEN_S", 1)
    begin(one, "run-1")
    await until(lambda: _are(other, ["run-1"]))
    assert one._telling is not None
    one._telling.cancel()
    await until(lambda: _are(other, []))


@pytest.mark.parametrize("state", ["suspended", "archived"])
async def test_programs_of_a_tenant_that_may_run_nothing_end_and_others_go_on(
    two: tuple[LivePrograms, LivePrograms], redis_url: str, state: Literal["suspended", "archived"]
) -> None:
    redis = connect(redis_url)
    directory = Directory(TenancyStore(redis))
    stopped, other = [(await directory.create_tenant(BY, name)).id for name in ("stopped", "other")]
    runs = [begin(programs, f"run-{owner}", owner) for programs in two for owner in (stopped, other, "somebody")]
    await until(lambda: _are_told(two[0], {run.request.id for run in runs}))
    assert not any(run.errors for run in runs)
    await directory.change_tenant(BY, stopped, state=state)
    ends = [run for run in runs if run.request.id == f"run-{stopped}"]
    await until(lambda: _are_ended(ends))
    assert [getattr(run.errors[0], "code", None) for run in ends] == ["tenant_suspended"] * 2
    assert not any(run.errors for run in runs if run not in ends)
    await redis.aclose()


async def test_without_a_redis_each_knows_its_own() -> None:
    gone = LivePrograms(connect("unix:///nowhere/redis.sock"))
    begin(gone, "run-1")
    assert await ids(gone) == ["run-1"]
    await gone.aclose()
    alone = LivePrograms(None)
    begin(alone, "run-2")
    assert await ids(alone) == ["run-2"]
    await alone.aclose()


async def _are(programs: LivePrograms, wanted: list[str]) -> bool:
    return await ids(programs) == wanted


async def _are_told(programs: LivePrograms, wanted: set[str]) -> bool:
    return wanted.issubset(await ids(programs))


async def _are_ended(runs: list[Running]) -> bool:
    return all(run.errors for run in runs)
