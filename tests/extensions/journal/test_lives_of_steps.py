"""Runs that were killed in the middle of generations that they decide themselves, or a device program, on an engine."""

from __future__ import annotations

import pytest

from engine.request import TokenEvent
from engine.scheduling import stepping
from extensions.errors import NotResumable
from extensions.journal.entries import Streamed
from tests.extensions.journal.lives import Lives
from tests.extensions.programs.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

STEPPED = """
ctx = await lm.context('one two three')
gen = await ctx.generation(max_tokens=40, temperature=1.0, seed=3, presence_penalty=1.0, top=8, template_stops=False)
seen, step = [], await gen.step()
for number in range(12):
    if step.finished:
        break
    seen.append([step.token, [one.token for one in step.candidates[:2]]])
    if number == 2:
        await gen.ban([step.token, step.candidates[1].token])
    if number == 4:
        await gen.choose(step.candidates[1].token)
    if number == 6:
        await gen.ban([step.candidates[2].token])
        await gen.choose(step.candidates[3].token)
    await lm.emit(step.text)
    step = await gen.step(3 if number in (6, 8) else 1)
await gen.stop()
more = await ctx.generate(max_tokens=4, temperature=1.0, seed=4, template_stops=False)
return [seen, more.tokens, ctx.length]
"""
REFUSED = """
ctx = await lm.context('one two three')
gen = await ctx.generation(max_tokens=24, temperature=1.0, seed=5, top=4, constrain={"regex": "[a-f]{3,20}"})
seen, refused, step = [], 0, await gen.step()
while not step.finished:
    try:
        taken = step.token
        step = await gen.step(choose=0 if len(seen) % 3 == 1 and refused <= len(seen) else taken)
        seen.append(taken)
    except ValueError as error:
        refused += 1 + len(seen) - refused
        assert str(error).startswith("constraint_invalid"), str(error)
return [seen, refused, step.finish_reason]
"""
DRAFTED = """
ctx = await lm.context('one two three')
both = await ctx.fork(2)
known = (await both[0].generate(max_tokens=24, temperature=0.0, template_stops=False)).tokens
drafting = await both[1].drafting(max_tokens=24, temperature=0.0, template_stops=False)
tokens, guesses, told = [], [], await drafting.next()
while told.wanted:
    tokens += told.tokens
    at = len(tokens)
    guesses.append([at, told.wanted])
    told = await drafting.next(known[at:][:3] if at % 2 else [known[at] + 1])
done = await drafting.completion()
return [known, tokens + told.tokens, done.tokens, await lm.sleep(0.0)]
"""
STATE = """
sampler = await lm.program(
    "state.mean = zeros(vocab)\\n"
    "def sample(logits, key):\\n"
    "    state.mean = 0.5 * state.mean + 0.5 * logits\\n"
    "    return gumbel_argmax(state.mean, key)\\n"
)
ctx = await lm.context('one two three')
said = await ctx.generate(max_tokens=24, sampler=sampler, seed=7, emit=True, template_stops=False)
return [said.tokens, ctx.length]
"""
AHEAD = """
guide = await lm.program(
    "def sample(lanes, key):\\n"
    "    return gumbel_argmax(lanes[1].logits + 0.5 * (lanes[0].logits - lanes[1].logits), key)\\n"
)
good, plain = await lm.context('one two three'), await lm.context('four five')
fwd = lm.forward()
await fwd.embed_next([good, plain])
await fwd.epilogue(guide)
tokens = await lm.pipeline().run_ahead(fwd, budget=24, seed=5)
more = await good.generate(max_tokens=4, temperature=1.0, seed=4, template_stops=False)
return [tokens, more.tokens, good.length, plain.length]
"""


@pytest.fixture(autouse=True)
def trustful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are soon told of several at a time, for the generations are short."""
    monkeypatch.setattr(stepping, "CONFIDENT", 2)
    monkeypatch.setattr(stepping, "BURST", 3)


@pytest.mark.parametrize("body", [STEPPED, REFUSED, DRAFTED, STATE, AHEAD])
async def test_killed_anywhere_in_a_generation_a_run_comes_to_the_same(real: Stage, body: str) -> None:
    lives = Lives(body, real)
    whole = await lives.live()
    assert whole is not None
    streamed = sum(isinstance(one, Streamed) for one in lives.entries)
    assert streamed > 3
    for most in range(1, len(lives.entries)):
        other = Lives.again(lives)
        other.entries = lives.entries[:most]
        outcome = await other.live()
        assert outcome is not None
        assert (outcome.result, outcome.content) == (whole.result, whole.content), most
        assert outcome.usage.num_completion_tokens == whole.usage.num_completion_tokens, most
        if body is not DRAFTED:  # where a guess is lost, more of them are asked for
            assert outcome.usage.num_host_calls == whole.usage.num_host_calls


@pytest.mark.parametrize("body", [STEPPED, DRAFTED, STATE, AHEAD])
@pytest.mark.parametrize("most", [1, 3, 7])
async def test_killed_over_and_over_it_comes_to_its_end(real: Stage, body: str, most: int) -> None:
    lives = Lives(body, real)
    num_lives = 0
    while (outcome := await lives.live(most)) is None:
        num_lives += 1
    again = await lives.live()
    assert again is not None
    assert (again.result, again.content) == (outcome.result, outcome.content)
    assert again.usage.num_completion_tokens == outcome.usage.num_completion_tokens
    assert num_lives >= 10 // most


async def test_what_a_device_program_with_state_draws_otherwise_this_time_is_found_out(real: Stage) -> None:
    lives = Lives(STATE, real)
    assert await lives.live() is not None
    streamed = [at for at, one in enumerate(lives.entries) if isinstance(one, Streamed)]
    assert len(streamed) > 2
    first = lives.entries[streamed[0]]
    assert isinstance(first, Streamed)
    event: TokenEvent = first.event
    event.token_ids = [(token_id + 1) % 50 for token_id in event.token_ids]
    lives.entries = lives.entries[: streamed[0] + 1]
    with pytest.raises(NotResumable, match="another this time"):
        await lives.live()
