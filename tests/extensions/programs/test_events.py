"""Tokens of a program's generation on their way to its reader, past the tasks between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from engine.request import GenerateRequest
from extensions.errors import ScriptLimitExceeded
from extensions.programs.events import MAX_WAITING, RunEvents
from extensions.programs.request import TextEmitted
from tests.extensions.programs.stage import Stage, main_of, scripted_stage, until
from tests.fakes import Action, ScriptedEngine

NUM_TOKENS = MAX_WAITING + 40
PAUSE_S = 0.001
GENERATES = main_of(f"""
    ctx = await lm.context("x")
    return (await ctx.generate(max_tokens={NUM_TOKENS}, emit=True)).text
""")


@pytest_asyncio.fixture
async def slow() -> AsyncIterator[Stage]:
    """Tokens come one by one, to readers who wait for them."""

    def script(request: GenerateRequest, index: int) -> Sequence[Action]:
        return [action for _ in range(NUM_TOKENS) for action in ([ord("a")], PAUSE_S)]

    made = scripted_stage(script)
    yield made
    await made.aclose()


async def test_tokens_wake_nobody_between_the_engine_and_the_reader(slow: Stage) -> None:
    outcome = await slow.run(GENERATES)
    engine = slow.engine
    assert isinstance(engine, ScriptedEngine)
    assert engine.num_taken > NUM_TOKENS // 2
    texts = [event.text for event in slow.events if isinstance(event, TextEmitted)]
    assert "".join(texts) == outcome.content
    assert outcome.usage.num_completion_tokens == NUM_TOKENS


async def test_who_only_waits_for_the_outcome_is_told_nothing_on_the_way(slow: Stage) -> None:
    run = await slow.start(GENERATES)
    outcome = await run.result()
    assert outcome.usage.num_completion_tokens == NUM_TOKENS
    assert outcome.content is not None
    assert outcome.usage.output_bytes == len(outcome.content.encode())


async def test_a_slow_reader_holds_a_generation_back_and_misses_nothing(slow: Stage) -> None:
    run = await slow.start(GENERATES)
    await until(lambda: run.usage.num_completion_tokens > MAX_WAITING)
    texts = [event.text async for event in run if isinstance(event, TextEmitted)]
    assert len(texts) >= MAX_WAITING
    assert "".join(texts) == run.outcome.content
    assert run.outcome.usage.num_completion_tokens == NUM_TOKENS
    await run.aclose()


async def test_a_limit_reached_by_a_token_that_woke_nobody_ends_the_run(slow: Stage) -> None:
    run = await slow.start(GENERATES, limits={"decode_tokens": 20})
    with pytest.raises(ScriptLimitExceeded, match="decode_tokens"):
        await run.result()
    slow.check_rest()


async def test_whoever_waits_for_room_goes_on_when_there_is_some_or_the_end() -> None:
    events = RunEvents()
    for at in range(MAX_WAITING):
        await events.send(TextEmitted(str(at)))
    assert not events.has_room
    late = asyncio.ensure_future(events.send(TextEmitted("late")))
    await asyncio.sleep(0)
    assert not late.done()
    assert await events.next() == TextEmitted("0")
    await late
    never = asyncio.ensure_future(events.send(TextEmitted("last")))
    await asyncio.sleep(0)
    assert not never.done()
    events.end()
    await never
    seen = [event async for event in _all(events)]
    assert [event.text for event in seen if isinstance(event, TextEmitted)][-2:] == ["late", "last"]


async def test_a_reader_is_woken_by_an_event_and_by_the_end() -> None:
    events = RunEvents()
    reader = asyncio.ensure_future(events.next())
    await asyncio.sleep(0)
    events.put(TextEmitted("x"))
    assert await reader == TextEmitted("x")
    reader = asyncio.ensure_future(events.next())
    await asyncio.sleep(0)
    events.end()
    assert await reader is None


async def test_what_nobody_reads_is_dropped_and_holds_nobody_back() -> None:
    events = RunEvents()
    for _ in range(MAX_WAITING):
        events.put(TextEmitted("x"))
    held = asyncio.ensure_future(events.send(TextEmitted("y")))
    await asyncio.sleep(0)
    events.discard()
    await held
    events.put(TextEmitted("z"))
    events.end()
    assert await events.next() is None


async def _all(events: RunEvents) -> AsyncIterator[object]:
    while (event := await events.next()) is not None:
        yield event
