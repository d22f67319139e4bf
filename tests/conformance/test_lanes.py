"""Every lane gives the same answer: tokens, finish reasons, lengths and memory of histories, what follows, usage."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.request import GenerateRequest
from engine.streams import RequestStream
from engine.text.model import TextModel
from extensions.errors import ScriptError
from extensions.programs.planner import Lane
from extensions.programs.program import Program, digest_of
from extensions.programs.request import ProgramOutcome, ProgramRequest
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from tests.conformance.cases import CASES, Case
from tests.conformance.lanes import WAYS, Way, lane_of, program_of
from tests.tiny_models import write_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEVICE = os.environ.get("WYE_TEST_DEVICE", "cpu")
"""The same holds on a GPU: `WYE_TEST_DEVICE=cuda pytest ...`."""


class Watched:
    """A runtime, and the requests that reach its engine."""

    def __init__(self, engine: EngineConnection, text: TextModel) -> None:
        self.engine = engine
        self.requests: list[GenerateRequest] = []
        submit = engine.submit

        async def submit_and_note(request: GenerateRequest) -> RequestStream:
            self.requests.append(request)
            return await submit(request)

        engine.submit = submit_and_note  # type: ignore[method-assign]
        self.runtime = Runtime(engine, text, sandbox=PoolOptions(min_workers=1, max_workers=2, checkout_s=60))

    async def run(self, source: str, *, salt: str, **request: Any) -> ProgramOutcome:
        """Runs a script to its end; what it asks of the engine is in `requests`."""
        self.requests.clear()
        program = Program(source=source, digest=digest_of(source))  # not type-checked: that takes longer than to run it
        run = await self.runtime.run_program(program, ProgramRequest(model="tiny", id="run", **request), salt=salt)
        return await run.result()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    config = EngineConfig(
        model=str(directory),
        device=DEVICE,
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=256),
        parallel=ParallelConfig(num_threads=1),
    )
    async with open_engine(build_loop(config)) as engine:
        made = Watched(engine, TextModel.load(directory))
        yield made
        await made.runtime.aclose()


def usage(outcome: ProgramOutcome) -> dict[str, int]:
    """What must not depend on the lane."""
    found = outcome.usage
    return {
        "prompt": found.num_prompt_tokens,
        "cached": found.num_cached_tokens,
        "completion": found.num_completion_tokens,
        "generations": found.num_generations,
        "contexts": found.num_contexts,
        "contexts at once": found.max_contexts,
    }


NAMED = Case(options={"max_tokens": 6, "temperature": 1.0, "seed": 3, "template_stops": False}, prompt="one two")


@pytest.mark.parametrize("name", CASES)
async def test_all_lanes_agree(watched: Watched, name: str) -> None:
    outcomes = {way: await watched.run(program_of(CASES[name], way), salt=f"{name} {way}") for way in WAYS}
    fused = outcomes["fused"]
    assert all(tokens for tokens, *_ in fused.result)
    for way, outcome in outcomes.items():
        assert outcome.result == fused.result, way
        assert usage(outcome) == usage(fused), way


@pytest.mark.parametrize("way", WAYS)
async def test_a_lane_is_the_one_that_it_is_called(watched: Watched, way: Way) -> None:
    """What reaches the engine is what only that lane asks for, and the lanes that are faster refuse the work."""
    lane = lane_of(way)
    outcome = await watched.run(one_generation(way), salt=f"named {way}", strict_path=lane)
    (asked,) = watched.requests
    assert outcome.exec_path == lane
    assert (asked.stepped, asked.program is not None) == (way in ("host", "host, chosen"), way == "device")
    assert ("the script" in outcome.exec_reason, "device program" in outcome.exec_reason) == (
        lane == "host",
        lane == "device",
    )
    assert (asked.drafter is not None) == way.endswith("guessed")
    faster: dict[str, tuple[Lane, ...]] = {"fused": (), "device": ("fused",), "host": ("fused", "device")}
    for other in faster[lane]:
        with pytest.raises(ScriptError, match="strict_path allows"):
            await watched.run(one_generation(way), salt="refused", strict_path=other)
        assert watched.requests == []


async def test_a_script_that_decides_is_called_for_every_token(watched: Watched) -> None:
    calls = {way: (await watched.run(one_generation(way), salt="calls")).usage.num_host_calls for way in WAYS}
    assert calls["fused"] < calls["device"] < calls["host"]
    assert calls["fused"] < calls["host, guessed"] <= calls["host"]
    assert calls["host"] == calls["host, chosen"] >= calls["fused"] + 6


async def test_lanes_that_draw_by_other_seeds_are_told_apart(watched: Watched) -> None:
    other = replace(NAMED, options={**NAMED.options, "seed": 4})
    for way in WAYS:
        first = await watched.run(program_of(NAMED, way), salt="apart")
        second = await watched.run(program_of(other, way), salt="apart")
        assert first.result[0][0] != second.result[0][0]


def one_generation(way: Way) -> str:
    """A script that does nothing but generate in one of the ways."""
    source, _, main = program_of(NAMED, way).partition("    await ctx.prefill()")
    return source + "    return [tokens, reason]\n\n\nasync def main" + main.partition("async def main")[2]
