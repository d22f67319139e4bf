"""Long generations that a script steps through, on an engine: proposals that come several at a time change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from engine.scheduling import stepping
from tests.extensions.programs.stage import Stage, main_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

BASE = "max_tokens=60, temperature=0.9, seed=3, template_stops=False"


STEP = """
async def stepped(ctx, wanted, **options):
    # Chooses at the places wanted; returns what was taken and all that was shown.
    gen = await ctx.generation(**options)
    tokens, shown = [], []
    step = await gen.step()
    while not step.finished:
        shown.append([step.token, round(step.entropy, 3), step.candidates[0].token])
        token = wanted.get(len(tokens), step.token)
        tokens.append(token)
        step = await gen.step(choose=token)
    return [tokens, shown, step.finish_reason]
"""


async def run(real: Stage, body: str) -> Any:
    return (await real.run(STEP + "\n\n" + main_of("ctx = await lm.context('one two three')\n" + body))).result


@pytest.mark.parametrize(
    "options",
    ["", ", frequency_penalty=0.8, repetition_penalty=1.2", ", top_k=20, min_p=0.01", ", stop='e'"],
    ids=["plain", "penalised", "truncated", "stopped"],
)
async def test_taking_all_that_is_proposed_is_generating(real: Stage, options: str) -> None:
    body = f"""
plain = await (await ctx.fork()).generate({BASE}{options})
tokens, shown, reason = await stepped(ctx, {{}}, {BASE}{options}, top=3)
info = await ctx.info()
more = await ctx.generate(max_tokens=4, temperature=0.0, template_stops=False)
return [plain.tokens, plain.finish_reason, tokens, reason, ctx.length, more.tokens]
"""
    plain, plain_reason, tokens, reason, length, more = await run(real, body)
    assert (tokens[: len(plain)], reason) == (plain, plain_reason)
    assert len(more) == 4
    assert length >= len(plain) + 4


@pytest.mark.parametrize("places", [(12,), (13,), (14, 15), (16, 30, 31), (9, 10, 11, 58, 59)])
async def test_what_follows_another_choice_is_what_follows_those_tokens(real: Stage, places: tuple[int, ...]) -> None:
    """Shown is what a fork with the very tokens before it would show."""
    wanted = {place: 40 + place for place in places}
    body = f"""
start = await ctx.mark()
tokens, shown, reason = await stepped(ctx, {wanted!r}, {BASE}, top=3)
seen = []
for at in {[place + 1 for place in places if place < 59]!r}:
    await ctx.rewind(start)
    await ctx.append(tokens[:at])
    again = await ctx.next(top=3)
    seen.append([at, again.candidates[0].token])
return [tokens, shown, reason, seen]
"""
    tokens, shown, reason, seen = await run(real, body)
    assert reason == "length"
    assert len(tokens) == len(shown) == 60
    assert all(tokens[place] == token for place, token in wanted.items())
    assert [shown[at][2] for at, _ in seen] == [token for _, token in seen]


@pytest.mark.parametrize("options", ["", ", frequency_penalty=0.7, presence_penalty=0.3", ", repetition_penalty=1.3"])
async def test_all_that_is_shown_is_the_same_where_nothing_is_computed_ahead(
    real: Stage, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {20: 50, 41: 51}
    body = f"return await stepped(ctx, {wanted!r}, {BASE}{options}, top=3)"
    ahead = await run(real, body)
    monkeypatch.setattr(stepping, "TRUSTED", 10**9)
    assert ahead == await run(real, body)


async def test_a_generation_that_is_left_among_proposals_has_what_was_taken(real: Stage) -> None:
    body = f"""
plain = await (await ctx.fork()).generate({BASE})
found = []
for count in range(10, 19):
    fork = await ctx.fork()
    length = fork.length
    gen = await fork.generation({BASE}, top=2)
    for at in range(count):
        step = await gen.step()
    if count % 2:
        await gen.choose(step.token)
    await gen.stop()
    taken = fork.length - length
    more = await fork.generate(max_tokens=60 - taken, temperature=0.9, seed=3, template_stops=False)
    found.append([count, taken, plain.tokens[:taken] + more.tokens == plain.tokens])
return found
"""
    assert await run(real, body) == [[count, count - 1 + count % 2, True] for count in range(10, 19)]


async def test_a_ban_and_several_steps_at_once_among_proposals(real: Stage) -> None:
    body = f"""
plain = await (await ctx.fork()).generate({BASE})
gen = await ctx.generation({BASE}, top=2)
tokens = []
for at in range(15):
    step = await gen.step()
    tokens.append(step.token)
step = await gen.step(n=5)
far = step.token == plain.tokens[19]
await gen.ban([plain.tokens[20]])
step = await gen.step()
banned = step.token != plain.tokens[20]
await gen.stop()
return [tokens == plain.tokens[:15], far, banned, ctx.length]
"""
    first, far, banned, length = await run(real, body)
    assert first
    assert far
    assert banned
    assert length > 20
