"""Runs that were killed go on where they were, wherever that is, and nothing is done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from extensions.errors import ReplayDiverged
from extensions.journal.entries import Begun, Done
from extensions.programs.request import ProgramOutcome
from tests.extensions.journal.lives import Lives, says_by_turn
from tests.extensions.programs.stage import scripted_stage
from tests.extensions.programs.test_tool_loop import asks

PLAIN = """
seen = [lm.now(), lm.random(), await lm.tool("look", n=1)]
async def one(n):
    got = await lm.tool("look", n=n)
    await asyncio.sleep(0.001)
    seen.append(n)
    return got
got = await asyncio.gather(*[one(n) for n in range(4)])
try:
    seen.append(await lm.tool("pay", n=2))
except RuntimeError as error:
    seen.append(str(error)[:20])
ctx = await lm.context(request.messages)
said = await ctx.generate(max_tokens=30, emit=True, temperature=1.0)
both = await ctx.fork(2)
more = await asyncio.gather(*[each.generate(max_tokens=9, temperature=1.0) for each in both])
later = await lm.start_tool("note", {"n": 5})
await lm.emit_event("seen", len(seen))
await lm.sleep(0.001)
print("so far", ctx.length)
return [seen, got, said.text, said.tokens, [one.tokens for one in more], await later.result(), str(later.status)]
"""
LOOP = """
ctx = await lm.context(request.messages)
answer = await lm.tool_loop(ctx, ["look", "pay", "note"], temperature=1.0)
await lm.emit_event("done", answer.finish_reason)
return {"text": answer.text, "finish": answer.finish_reason, "length": ctx.length}
"""
UNKNOWN = "tool_outcome_unknown"


@pytest.fixture
async def plain() -> AsyncIterator[Lives]:
    lives = Lives(PLAIN, scripted_stage(says_by_turn("What a long answer this is.")))
    lives.source = "import asyncio\n" + lives.source
    yield lives
    await lives.stage.aclose()


@pytest.fixture
async def looping() -> AsyncIterator[Lives]:
    calls = f"[{asks('look', n=1)}, {asks('pay', n=2)}]"
    lives = Lives(LOOP, scripted_stage(says_by_turn(calls, calls, asks("note", n=3), "All of it is paid.")))
    yield lives
    await lives.stage.aclose()


def check_once(lives: Lives) -> None:
    """What must not happen twice has not, however often it was tried."""
    begun = [one for one in lives.entries if isinstance(one, Begun) and ".tool." in one.key]
    done = [one for one in lives.entries if isinstance(one, Done) and one.key in {one.key for one in begun}]
    assert len(begun) == len({one.key for one in begun})
    assert len(done) == len(begun)
    known = [one for one in done if not one.error]
    assert all(one.error[0] == UNKNOWN for one in done if one.error)
    assert len(known) <= lives.tools.calls.get("pay", 0) <= len(begun)


async def test_a_run_is_the_same_with_a_journal(plain: Lives) -> None:
    outcome = await plain.live()
    assert outcome is not None
    assert plain.tools.calls == {"look": 5, "pay": 1, "note": 1}
    again = await plain.live()
    assert again is not None
    assert (again.result, again.content) == (outcome.result, outcome.content)
    assert plain.tools.calls == {"look": 5, "pay": 1, "note": 1}
    assert again.usage.num_completion_tokens == outcome.usage.num_completion_tokens
    assert again.usage.num_host_calls == outcome.usage.num_host_calls


def told(outcome: ProgramOutcome) -> object:
    """What came of a run, but for time, chance, who was first and whether a payment is known."""
    result = outcome.result
    if isinstance(result, list):
        result = [sorted(one for one in result[0] if isinstance(one, int)), *result[1:]]
    return (result, outcome.content, outcome.finish_reason, outcome.logs)


@pytest.mark.parametrize("start", range(6))
async def test_killed_anywhere_a_run_comes_to_the_same(plain: Lives, start: int) -> None:
    whole = await plain.live()
    assert whole is not None
    for most in range(start, len(plain.entries), 6):
        lives = Lives.again(plain)
        assert await lives.live(most) is None
        before = Counter(type(one).__name__ for one in lives.entries)
        outcome = await lives.live()
        assert outcome is not None
        assert told(outcome) == told(whole), most
        assert outcome.usage.num_completion_tokens == whole.usage.num_completion_tokens
        assert before["Settled"] <= Counter(type(one).__name__ for one in lives.entries)["Settled"]
        check_once(lives)


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_killed_over_and_over_a_run_comes_to_the_same(plain: Lives, most: int) -> None:
    whole = await Lives.again(plain).live()
    num_lives = 0
    while (outcome := await plain.live(most)) is None:
        num_lives += 1
    assert whole is not None
    assert told(outcome) == told(whole)
    assert num_lives > 60 // most
    check_once(plain)


@pytest.mark.parametrize("start", range(4))
async def test_an_agent_that_is_killed_anywhere_pays_once_at_most_for_each_time_it_wants_to(
    looping: Lives, start: int
) -> None:
    whole = await looping.live()
    assert whole is not None
    assert looping.tools.calls == {"look": 1, "pay": 1, "note": 1}
    for most in range(start, len(looping.entries), 4):
        lives = Lives.again(looping)
        assert await lives.live(most) is None
        outcome = await lives.live()
        assert outcome is not None
        assert outcome.content == whole.content
        assert outcome.result["text"] == "All of it is paid."
        check_once(lives)


async def test_another_program_in_its_place_is_found_out(plain: Lives) -> None:
    assert await plain.live(12) is None
    plain.source = plain.source.replace('"look", n=1', '"look", n=2')
    with pytest.raises(ReplayDiverged, match="same with other arguments"):
        await plain.live()


CLOCKS = """
import asyncio, datetime, random, time
async def main(request, lm):
    seen = [time.time(), time.monotonic(), random.random(), random.randint(1, 10**9)]
    days = [datetime.datetime.now().isoformat(), str(datetime.date.today())]
    await asyncio.gather(asyncio.sleep(0.003), asyncio.sleep(0.001))
    return [*seen, *days, str(datetime.datetime.now(datetime.timezone.utc))]
"""


async def test_clocks_and_chance_of_the_sandbox_are_those_of_before(plain: Lives) -> None:
    plain.source = CLOCKS
    first = await plain.live()
    again = await plain.live()
    assert first is not None
    assert again is not None
    assert again.result == first.result
    other = Lives.again(plain)
    third = await other.live()
    assert third is not None
    assert third.result[0] > first.result[0]
