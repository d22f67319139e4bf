"""What whoever starts a run is told of it as it happens."""

from __future__ import annotations

import pytest

from extensions.programs import trace
from extensions.programs.request import ProgramRequest, RunEvent, TraceNoted
from tests.extensions.programs.stage import Stage, main_of

TREE = main_of(
    """
    prompt = await lm.context("some words")
    first, second = await prompt.fork(2)
    await first.generate(max_tokens=2)
    generation = await second.generation(max_tokens=1)
    while not (await generation.step()).finished:
        pass
    await first.release()
    return "done"
    """
)


async def notes_of(stage: Stage, source: str, *, wants: bool = True) -> list[TraceNoted]:
    program = await stage.runtime.check_program(source)
    events: list[RunEvent] = []
    async with await stage.runtime.run_program(program, ProgramRequest(trace=wants)) as run:
        events.extend([event async for event in run])
    return [event for event in events if isinstance(event, TraceNoted)]


async def test_every_context_and_generation_is_told_in_order(stage: Stage) -> None:
    notes = await notes_of(stage, TREE)
    told = [(note.type, note.data.get("context"), note.data.get("parent")) for note in notes if note.type != "kv"]
    assert told[:3] == [("context.open", 1, None), ("context.open", 2, 1), ("context.open", 3, 1)]
    assert told[3:7] == [
        ("generate.start", 2, None),
        ("generate.end", 2, None),
        ("generate.start", 3, None),
        ("generate.end", 3, None),
    ]
    assert told[7] == ("context.close", 2, None)
    assert sorted(told[8:]) == [("context.close", 1, None), ("context.close", 3, None)]
    lanes = [note.data["lane"] for note in notes if note.type == "generate.start"]
    assert lanes == ["fused", "host"]
    assert [note.data["tokens"] for note in notes if note.type == "generate.end"] == [2, 1]
    times = [note.at_ms for note in notes]
    assert times == sorted(times)


async def test_nothing_is_told_to_who_does_not_ask(stage: Stage) -> None:
    assert await notes_of(stage, TREE, wants=False) == []


async def test_a_run_without_end_is_told_up_to_a_bound(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_NOTES", 10)
    notes = await notes_of(stage, main_of("for i in range(50):\n    await (await lm.context('x')).release()"))
    assert [note.type for note in notes][-2:] == ["context.close", "cut"]
    assert len(notes) == 11


async def test_kv_is_told_while_it_is_held(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "SAMPLE_S", 0.01)
    notes = await notes_of(stage, main_of("ctx = await lm.context('some words')\nawait lm.sleep(0.1)"))
    assert sum(note.type == "kv" for note in notes) >= 2
