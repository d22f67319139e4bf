"""Scripts that end in the middle of steps that they know: what they used is what they took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.sampling.params import SamplingParams
from engine.scheduling import stepping
from extensions.errors import RunCancelled, ScriptError, ScriptLimitExceeded
from extensions.output import GenerateOptions
from extensions.programs.request import EventEmitted, ProgramUsage
from extensions.programs.run import ProgramRun
from extensions.programs.stepping import ScriptGeneration
from extensions.programs.world import World
from extensions.sandbox import script
from extensions.sandbox.guessing import GUESSING
from extensions.sandbox.stepping import STEPPING
from extensions.stepped import SteppedGeneration
from tests.extensions.programs.stage import Stage, main_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEGIN = """
ctx = await lm.context('one two three')
gen = await ctx.generation(max_tokens=60, temperature=0.9, seed=3, template_stops=False, top=3)
step = await gen.step()
for at in range({count}):
    if at % 3 == 0:
        await gen.choose(step.token)
    step = await gen.step()
"""
RAISES = "raise KeyError('enough')"
DIVIDES = "1 / 0"
REFUSED = "await gen.step(0)"
SPINS = "while True:\n    pass"
RECURSES = "def down():\n    down()\ndown()"
FALLS_WITH_ANOTHER = """
async def more():
    for _ in range(3):
        await gen.step()
    await lm.emit_event('stepped', 3)
async def fails():
    await lm.receive()
    raise ValueError('too late')
await asyncio.gather(more(), fails())
"""
IS_NO_JSON = "return {1, 2}"
RETURNS = "return [step.token]"


@pytest.fixture(autouse=True)
def trustful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are soon told of several at a time."""
    monkeypatch.setattr(stepping, "CONFIDENT", 2)


class Signal:
    """An input that comes once the script has emitted something."""

    def __init__(self) -> None:
        self.emitted = asyncio.Event()

    async def receive(self, timeout_s: float | None) -> bytes:
        """Waits for that."""
        await self.emitted.wait()
        return b"null"


async def ended(stage: Stage, source: str, **options: Any) -> tuple[str, ProgramUsage]:
    """How a script ends, and what it used."""
    signal = Signal()
    stage.world = World(inbox=signal)
    run = await stage.start(source, **options)
    try:
        async for event in run:
            if isinstance(event, EventEmitted):
                signal.emitted.set()
        told = str((await run.result()).result)
    except (ScriptError, ScriptLimitExceeded) as error:
        told = str(error)
    stage.check_rest()
    await until(lambda: stage.engine.stats.num_used_pages == 0)
    return told, run.usage


async def told(run: ProgramRun, *, ends: bool) -> None:
    """Reads a run's events to its end; its time is up with its first event if it `ends` then."""
    async for event in run:
        if isinstance(event, EventEmitted) and ends:
            run.end(ScriptLimitExceeded("wall_s", 600.0, 600.0))


async def both(
    stage: Stage, source: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> list[tuple[str, ProgramUsage]]:
    """The same with steps in the sandbox, and without."""
    known = await ended(stage, source, **options)
    with monkeypatch.context() as patch:
        patch.setattr(script, "STEPPING", GUESSING)
        return [known, await ended(stage, source, **options)]


@pytest.mark.parametrize("count", [14, 15, 16, 17])
@pytest.mark.parametrize(
    "end", [RAISES, DIVIDES, REFUSED, FALLS_WITH_ANOTHER, RECURSES, IS_NO_JSON, RETURNS], ids=str.split
)
async def test_what_a_script_took_before_it_ended_is_counted(
    real: Stage, end: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = main_of(BEGIN.format(count=count) + end.strip())
    (told, known), (asked_told, asked) = await both(real, source, monkeypatch)
    assert told == asked_told
    assert known.num_completion_tokens == asked.num_completion_tokens >= count
    assert known.num_host_calls == asked.num_host_calls


async def test_what_a_script_took_before_its_time_was_up_is_counted(
    real: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = main_of(BEGIN.format(count=15) + SPINS)
    (told, known), (asked_told, asked) = await both(real, source, monkeypatch, limits={"exec_s": 0.5})
    assert told.startswith("The program reached its limit exec_s") == asked_told.startswith(
        "The program reached its limit exec_s"
    )
    assert (known.num_completion_tokens, known.num_host_calls) == (15, asked.num_host_calls)


@pytest.mark.parametrize("limit", ["kv_bytes", "kv_byte_seconds", "wall_s"])
async def test_a_limit_that_the_server_watches_ends_a_script_with_steps_that_it_knows(
    real: Stage, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be asked no more, so what it was given counts, and nothing of it is left."""
    steps = main_of(BEGIN.format(count=15) + "return (await ctx.info()).bytes")
    held_bytes = (await real.run(steps)).result
    source = main_of(
        BEGIN.format(count=15) + "await lm.emit_event('here', 1)\n"
        "big = await lm.context('one two three ' * 40)\nawait big.prefill()\nawait lm.sleep(100)"
    )
    limits = {"kv_bytes": {"kv_bytes": held_bytes}, "kv_byte_seconds": {"kv_byte_seconds": 1}}.get(limit, {})
    for stand_in in (STEPPING, GUESSING):
        with monkeypatch.context() as patch:
            patch.setattr(script, "STEPPING", stand_in)
            run = await real.start(source, limits=limits)
            with pytest.raises(ScriptLimitExceeded) as caught:
                await told(run, ends=limit == "wall_s")
        assert caught.value.limit == limit
        assert run.usage.num_completion_tokens <= 15 + 8
        assert run.usage.num_completion_tokens >= 15 or limit == "kv_byte_seconds"
        real.check_rest()
        await until(lambda: real.engine.stats.num_used_pages == 0)


async def test_of_a_script_that_can_say_no_more_all_counts_that_it_was_given(
    real: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    steps = ScriptGeneration.steps

    async def counted(self: ScriptGeneration, *args: Any, **fields: Any) -> Any:
        found = await steps(self, *args, **fields)
        given.append(len(found))
        return found

    monkeypatch.setattr(ScriptGeneration, "steps", counted)
    run = await real.start(main_of(BEGIN.format(count=15) + "await lm.emit_event('here', 1)\nawait lm.sleep(100)"))
    async for event in run:
        if isinstance(event, EventEmitted):
            break
    await run.aclose()
    with pytest.raises(RunCancelled):
        await run.result()
    assert max(given) > 1
    assert run.usage.num_completion_tokens == sum(given) - 1 >= 15
    await until(lambda: real.engine.stats.num_used_pages == 0)


@pytest.mark.parametrize("most", range(12, 30, 2))
@pytest.mark.parametrize("limit", ["host_calls", "decode_tokens"])
async def test_a_limit_is_met_at_the_same_step(
    real: Stage, limit: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = main_of(BEGIN.format(count=16) + RETURNS)
    (told, known), (asked_told, asked) = await both(real, source, monkeypatch, limits={limit: most})
    assert told == asked_told
    if told.startswith("["):
        assert known.num_completion_tokens == asked.num_completion_tokens
        assert known.num_host_calls == asked.num_host_calls


@pytest.mark.parametrize("most", [20, 26, 31, 36, 40])
async def test_generations_that_are_known_ahead_together_share_a_limit(
    real: Stage, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
root = await lm.context('one two three')
gens = []
for at, fork in enumerate(await root.fork(3)):
    gens.append(await fork.generation(max_tokens=60, temperature=0.9, seed=at, template_stops=False))
for number in range(12):
    for gen in gens:
        print((await gen.step()).token)
return 'done'
"""
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        for stand_in in (STEPPING, GUESSING):
            patch.setattr(script, "STEPPING", stand_in)
            try:
                await real.run(main_of(body), limits={"decode_tokens": most})
                printed.append(["done", real.printed])
            except ScriptLimitExceeded as error:
                printed.append([str(error), real.printed])
    assert printed[0] == printed[1]


async def test_a_context_that_is_released_has_no_more_steps(real: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    body = BEGIN.format(count=14) + (
        "await ctx.release()\n"
        "try:\n    await gen.step()\nexcept (ValueError, RuntimeError) as error:\n    told = str(error)\n"
        "else:\n    told = 'went on'\n"
        "return [told]"
    )
    (told, known), (asked_told, asked) = await both(real, main_of(body), monkeypatch)
    assert told == asked_told != "['went on']"
    assert known.num_completion_tokens == asked.num_completion_tokens == 14
    assert known.num_host_calls == asked.num_host_calls


async def test_tokens_that_were_known_need_not_be_computed_again(real: Stage) -> None:
    body = BEGIN + "await gen.stop()\nfound.append([ctx.length - start, (await ctx.info()).pending])\n"
    lines = "\n".join("    " + line for line in body.replace("{count}", "count").strip().split("\n"))
    lines = lines.replace("    gen = ", "    start = ctx.length\n    gen = ", 1)
    source = main_of("found = []\nfor count in range(10, 19):\n" + lines + "\nreturn found")
    assert (await real.run(source)).result == [[count, 0] for count in range(10, 19)]


async def next_of(generation: SteppedGeneration) -> int:
    token_id = (await generation.step()).token_id
    assert token_id is not None
    return token_id


async def test_a_generation_that_is_closed_while_it_waits_keeps_what_was_taken(
    real: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine was told and has not confirmed is part of the history."""
    runtime = real.runtime
    prompt = real.text.tokenizer.encode("one two three", add_special=False)
    context = runtime.open_context(prompt)
    before = context.length
    options = GenerateOptions(sampling=SamplingParams(max_tokens=60, temperature=0.9, seed=3, ignore_eos=True))
    generation = await context.stepped(options)
    shown: list[int] = []
    while not generation.known(8) or len(shown) < 12:
        shown.append(await next_of(generation))
    while generation.known(8):
        shown.append(await next_of(generation))
    waiting = asyncio.ensure_future(generation.step())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    taken = generation.usage.num_completion_tokens
    assert context.length - before == taken >= len(shown) - 1
    assert context.token_ids[before:] == shown[:taken]
    again = await context.next(top=3)
    context.release()
    other = runtime.open_context([*prompt, *shown[:taken]])
    assert list((await other.next(top=3)).token_ids) == list(again.token_ids)
    other.release()
    await until(lambda: real.engine.stats.num_used_pages == 0)
