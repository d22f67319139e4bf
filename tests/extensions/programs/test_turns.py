"""Whose programs compute while KV memory is short, and that parked ones go on as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions
from extensions.programs.turns import BUSY_S, WORKING_S, Place, Turns
from tests.extensions.programs.stage import Stage, main_of, scripted_stage, until
from tests.fakes import Action, ScriptedEngine, repeats, text_model

NUM_PAGES = 100
HELD = 10


class Hall:
    """Turns of programs that hold `HELD` pages each, at a time that the test sets."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(text_model(), repeats(0), num_pages=NUM_PAGES)
        self.engine.tell_used(NUM_PAGES)
        self.now_s = 100.0
        self.turns = Turns(self.engine, lambda: self.now_s)
        self.gave_up: list[int] = []
        self._open: dict[Place, AsyncExitStack] = {}
        self._asking: dict[Place, asyncio.Task[None]] = {}

    async def computing(self, count: int, account: str = "") -> list[Place]:
        """So many programs more that have computed before and compute now."""
        places = [self.turns.place() for _ in range(count)]
        for place in places:
            await self.begin(place, account)
            await self.stop(place)
            await self.begin(place, account)
        return places

    async def begin(self, place: Place, account: str = "") -> bool:
        """A program wants to compute; returns whether it does."""
        self._asking[place] = asyncio.create_task(self._enter(place, account))
        for _ in range(5):
            await asyncio.sleep(0)
        return self.is_computing(place)

    async def stop(self, place: Place) -> None:
        """It has computed."""
        await self._open.pop(place).aclose()

    async def end(self, place: Place) -> None:
        """It has ended."""
        if place in self._open:
            await self.stop(place)
        self.turns.end(place, HELD)
        for _ in range(5):
            await asyncio.sleep(0)

    def is_computing(self, place: Place) -> bool:
        """Whether it does."""
        return place in self._open

    async def cancel(self, place: Place) -> None:
        """It does not want to compute any more."""
        self._asking[place].cancel()
        await asyncio.gather(self._asking[place], return_exceptions=True)

    async def aclose(self) -> None:
        """Ends all; nobody may wait in the end."""
        for place, asking in self._asking.items():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await self.end(place)
        assert self.turns.num_parked == 0

    async def _enter(self, place: Place, account: str) -> None:
        async def give_up() -> None:
            self.gave_up.append(place.number)

        async with AsyncExitStack() as stack:
            turn = self.turns.turn(place, account, count_pages=lambda: HELD, give_up=give_up)
            await stack.enter_async_context(turn)
            self._open[place] = stack.pop_all()


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    made = Hall()
    yield made
    await made.aclose()


async def again(hall: Hall, place: Place) -> bool:
    """A program ends a generation and begins another."""
    await hall.stop(place)
    return await hall.begin(place)


async def test_the_youngest_waits_from_its_next_generation_on_until_one_that_computes_has_ended(hall: Hall) -> None:
    old, middle, young = await hall.computing(3)
    hall.turns.lost(old)
    assert hall.is_computing(young), "what it has begun goes on"
    assert not await again(hall, young)
    assert hall.gave_up == [young.number]
    assert await again(hall, old)
    await hall.end(middle)
    assert hall.is_computing(young)


async def test_nobody_is_parked_where_memory_is_not_short(hall: Hall) -> None:
    old, young = await hall.computing(2)
    hall.engine.tell_used(NUM_PAGES * 4 // 5)
    hall.turns.lost(old)
    assert await again(hall, young)


async def test_what_a_program_lost_while_it_did_something_else_is_no_reason(hall: Hall) -> None:
    old, young = await hall.computing(2)
    await hall.stop(old)
    hall.now_s += WORKING_S + 1
    await hall.begin(old)
    hall.turns.lost(old)
    assert await again(hall, young)


async def test_memory_of_programs_that_do_something_else_is_not_short(hall: Hall) -> None:
    (idle,) = await hall.computing(1)
    await hall.stop(idle)
    hall.now_s += WORKING_S + 1
    old, young = await hall.computing(2)
    hall.turns.lost(old)
    assert await again(hall, young)


async def test_what_parked_programs_are_about_to_give_up_is_counted_until_the_engine_tells_of_it(hall: Hall) -> None:
    old, middle, young, youngest = await hall.computing(4)
    hall.turns.lost(old)
    hall.turns.lost(old)
    assert not await again(hall, youngest)
    hall.turns.lost(old)
    assert await again(hall, young), "the first of them is enough"
    hall.engine.tell_used(NUM_PAGES)
    hall.turns.lost(middle)
    assert not await again(hall, young)


async def test_the_last_that_computes_is_never_parked(hall: Hall) -> None:
    (only,) = await hall.computing(1)
    hall.turns.lost(only)
    assert await again(hall, only)


async def test_a_parked_program_goes_on_when_memory_is_free_for_it_and_for_others_to_grow(hall: Hall) -> None:
    old, _, young = await hall.computing(3)
    hall.turns.lost(old)
    assert not await again(hall, young)
    hall.engine.tell_used(NUM_PAGES * 3 // 4)
    assert await again(hall, old)
    assert not hall.is_computing(young)
    hall.engine.tell_used(NUM_PAGES * 3 // 4 - HELD)
    await until(lambda: hall.is_computing(young))


async def test_only_one_goes_on_before_the_engine_tells_what_it_takes(hall: Hall) -> None:
    old, _, _, young, youngest = await hall.computing(5)
    for place in (youngest, young):
        hall.turns.lost(old)
        assert not await again(hall, place)
        hall.engine.tell_used(NUM_PAGES)
    hall.engine.tell_used(NUM_PAGES // 4)
    assert await again(hall, old)
    await asyncio.sleep(0)
    assert (hall.is_computing(young), hall.is_computing(youngest)) == (True, False)
    hall.engine.tell_used(NUM_PAGES // 4)
    await until(lambda: hall.is_computing(youngest))


async def test_a_parked_program_goes_on_when_most_others_do_something_else(hall: Hall) -> None:
    old, middle, young = await hall.computing(3)
    hall.turns.lost(old)
    assert not await again(hall, young)
    await hall.stop(middle)
    assert not hall.is_computing(young), "it may begin its next generation in a moment"
    hall.now_s += BUSY_S + 0.1
    await until(lambda: hall.is_computing(young))


async def test_many_that_end_a_generation_in_the_same_step_are_no_room(hall: Hall) -> None:
    *others, young = await hall.computing(8)
    hall.turns.lost(others[0])
    assert not await again(hall, young)
    for place in others:
        await hall.stop(place)
    assert not hall.is_computing(young)
    for place in others:
        assert await hall.begin(place)


async def test_programs_that_come_later_wait_behind_those_of_their_account(hall: Hall) -> None:
    old, young = await hall.computing(2)
    hall.turns.lost(old)
    assert not await again(hall, young)
    late, other = hall.turns.place(), hall.turns.place()
    assert not await hall.begin(late)
    assert await hall.begin(other, "other")
    await hall.end(old)
    assert (hall.is_computing(young), hall.is_computing(late)) == (True, False)
    await hall.end(young)
    assert hall.is_computing(late)


async def test_the_account_with_most_programs_gives_way(hall: Hall) -> None:
    many = await hall.computing(3, "many")
    few = await hall.computing(2, "few")
    hall.turns.lost(few[0])
    for place in few:
        await hall.stop(place)
        assert await hall.begin(place, "few")
    await hall.stop(many[-1])
    assert not await hall.begin(many[-1], "many")


async def test_a_program_that_gives_up_waiting_leaves_nothing(hall: Hall) -> None:
    old, young = await hall.computing(2)
    hall.turns.lost(old)
    assert not await again(hall, young)
    assert hall.turns.num_parked == 1
    await hall.cancel(young)
    assert hall.turns.num_parked == 0


# -- whole programs --------------------------------------------------------------------------------------------------


ROUNDS = """
ctx = await lm.context(list(range(100, 164)))
for number in range(4):
    await ctx.generate(max_tokens=4, template_stops=False)
return await ctx.tokens()
"""


async def test_a_parked_program_frees_its_context_waits_and_ends_as_if_it_had_not() -> None:
    stage = scripted_stage()
    engine, turns = stage.engine, stage.programs.turns
    assert isinstance(engine, ScriptedEngine)
    gates: list[asyncio.Event] = []

    def script(request: GenerateRequest, index: int) -> list[Action]:
        gates.append(asyncio.Event())
        return [gates[-1], *[[7]] * 4]

    async def answer(first: int, count: int) -> None:
        await until(lambda: len(gates) >= first + count)
        for gate in gates[first : first + count]:
            gate.set()

    engine.script, engine.num_cached_tokens = script, 4000
    runs = [await stage.start(main_of(ROUNDS)) for _ in range(2)]
    await answer(0, 2)
    await until(lambda: len(gates) == 4)
    engine.tell_used(engine.info.num_pages)
    engine.num_cached_tokens = 0
    await answer(2, 2)
    await until(lambda: turns.num_parked == 1)
    assert len(engine.contexts.histories) == 1
    for number in range(4, 8):
        await answer(number, 1)
    outcomes = await asyncio.gather(*(run.result() for run in runs))
    assert [outcome.result for outcome in outcomes] == [[*range(100, 164), *[7] * 16]] * 2
    assert len({request.context_id for request in engine.requests}) == 3, "one of the two was opened again"
    assert turns.num_parked == 0
    await stage.aclose()


async def generated(context: LiveContext, count: int) -> int:
    """Goes on greedily; returns how many tokens needed no computing."""
    options = GenerateOptions(sampling=SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True))
    async with await context.generate(options) as generation:
        async for _ in generation:
            pass
    return generation.usage.num_cached_tokens


async def test_a_context_that_gave_up_its_kv_goes_on_with_the_same_tokens(real_stage: Stage) -> None:
    runtime = real_stage.runtime
    whole, parted = (runtime.open_context(list(range(10, 50))) for _ in range(2))
    await generated(whole, 20)
    await generated(parted, 10)
    assert parted.num_computed == 50
    await parted.give_up()
    assert parted.num_computed == 0
    charged = parted.kv_kib_ms
    assert charged > 0
    engine = real_stage.engine
    await until(lambda: engine.stats.num_contexts == 1)
    assert await generated(parted, 10) == 48, "whole pages were still to be found"
    assert parted.token_ids == whole.token_ids
    assert parted.kv_kib_ms > charged
    whole.release()
    parted.release()


async def test_what_somebody_wishes_to_keep_is_not_given_up(real_stage: Stage) -> None:
    context = real_stage.runtime.open_context(list(range(10, 50)))
    await generated(context, 4)
    lease = await context.retain(ttl_s=60, max_bytes=10_000_000)
    await context.give_up()
    assert context.num_computed == 44
    lease.end()
    await context.give_up()
    assert context.num_computed == 0
    context.release()
    await context.give_up()
