"""Programs beside plain completions."""

from __future__ import annotations

from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from loadtests.programs import GENERATES, WAITS, admission_ms, compare, quantile
from tests.fakes import ScriptedEngine, repeats, text_model


async def test_both_kinds_do_the_same_work_and_are_timed() -> None:
    text = text_model()
    engine = ScriptedEngine(text, repeats(300))
    runtime = Runtime(engine, text, sandbox=PoolOptions(min_workers=1, max_workers=4))
    row = await compare(runtime, GENERATES, width=3, num_tokens=5, rounds=2, first_round=0)
    assert len(row["plain_s"]) == len(row["program_s"]) == 2
    ratios = sorted(plain_s / program_s for plain_s, program_s in zip(row["plain_s"], row["program_s"], strict=True))
    assert row["ratio"] == sum(ratios) / 2
    prompts = [tuple(request.prompt_ids) for request in engine.requests]
    assert len(set(prompts)) == len(prompts) == 12
    assert {request.sampling.max_tokens for request in engine.requests} == {5}
    await runtime.aclose()


async def test_admission_is_timed_beside_other_programs() -> None:
    text = text_model()
    runtime = Runtime(ScriptedEngine(text, repeats(300)), text, sandbox=PoolOptions(min_workers=1, max_workers=4))
    program = await runtime.check_program(WAITS)
    assert len(await admission_ms(runtime, program, 1, 3)) == 3
    assert len(await admission_ms(runtime, program, 2, 3)) == 3
    await runtime.aclose()


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0], 0.99) == 1.0
