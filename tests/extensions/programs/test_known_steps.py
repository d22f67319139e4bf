"""Steps that wait inside the sandbox until the script gets to them: it sees and uses what it would without."""

from __future__ import annotations

from typing import Any

import pytest

from extensions.errors import ScriptError, ScriptLimitExceeded
from extensions.programs.request import ProgramOutcome
from extensions.programs.stepping import ScriptGeneration
from extensions.sandbox import script
from extensions.sandbox.guessing import GUESSING
from extensions.sandbox.stand_ins import with_stand_ins
from extensions.sandbox.stepping import STEPPING
from tests.extensions.programs.stage import Stage, main_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEGIN = """
ctx = await lm.context('one two three')
gen = await ctx.generation(max_tokens=60, temperature=0.9, seed=3, template_stops=False, top=3)
step, seen = await gen.step(), []
"""
TAKES_ALL = """
while not step.finished:
    seen.append([step.token, step.text, round(step.entropy, 3), [one.token for one in step.candidates]])
    step = await gen.step()
return [seen, step.finish_reason, ctx.length]
"""
CHOOSES_ALL = """
while not step.finished:
    seen.append(step.token)
    await gen.choose(step.token)
    step = await gen.step()
return [seen, ctx.length]
"""
CHOOSES_ANOTHER = """
while not step.finished:
    token = step.candidates[1].token if len(seen) in (13, 22, 23, 48) else step.token
    seen.append(token)
    step = await gen.step(choose=token)
return [seen, ctx.length]
"""
CHANGES_ITS_MIND = """
while not step.finished:
    if len(seen) == 21:
        await gen.choose(step.candidates[1].token)
        await gen.choose(step.token)
    if len(seen) == 23:
        await gen.choose(step.token)
        await gen.choose(step.candidates[1].token)
    seen.append(step.token)
    step = await gen.step()
return [seen, ctx.length]
"""
FORBIDS = """
for number in range(44):
    seen.append(step.token)
    if number == 18:
        await gen.choose(step.token)
        await gen.ban([step.token])
    if number == 31:
        await gen.ban([step.token])
    step = await gen.step()
await gen.stop()
return [seen, ctx.length]
"""
GOES_FURTHER = """
for number in range(20):
    seen.append(step.token)
    step = await gen.step(4 if number in (11, 18) else 1)
await gen.stop()
return [seen, ctx.length]
"""
STOPS = """
for number in range({count}):
    seen.append(step.token)
    step = await gen.step()
await gen.choose(step.token)
await gen.stop()
more = await ctx.generate(max_tokens=4, temperature=0.0, template_stops=False)
return [seen, more.tokens, ctx.length]
"""
LEAVES = """
for number in range({count}):
    seen.append(step.token)
    step = await gen.step()
return seen
"""
TWO = """
other_ctx = await lm.context('four')
other = await other_ctx.generation(max_tokens=40, temperature=0.9, seed=4, template_stops=False)
for number in range(35):
    mine, theirs = await asyncio.gather(gen.step(), other.step())
    seen.append([mine.token, theirs.token])
await other.stop()
await gen.stop()
return [seen, ctx.length, other_ctx.length]
"""
AT_ONCE = """
for number in range(12):
    for one in await asyncio.gather(gen.step(), gen.step(), gen.step()):
        seen.append(one.token)
    for _ in range(number % 3):
        step = await gen.step()
        seen.append(step.token)
await gen.stop()
return [seen, ctx.length]
"""
BODIES = [
    *(TAKES_ALL, CHOOSES_ALL, CHOOSES_ANOTHER, CHANGES_ITS_MIND, FORBIDS, GOES_FURTHER, TWO, AT_ONCE),
    *(body.format(count=count) for body in (STOPS, LEAVES) for count in (17, 18, 19, 50)),
]


async def both(
    real: Stage, body: str, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[ProgramOutcome, ProgramOutcome]:
    """What comes of it with steps in the sandbox, and without."""
    source = main_of(BEGIN + body)
    known = await real.run(source, **options)
    with monkeypatch.context() as patch:
        patch.setattr(script, "STEPPING", GUESSING)
        return known, await real.run(source, **options)


@pytest.mark.parametrize("body", BODIES)
async def test_a_script_sees_and_uses_what_it_would_if_it_asked_for_every_step(
    real: Stage, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, asked = await both(real, body, monkeypatch)
    assert known.result == asked.result
    assert known.usage.num_completion_tokens == asked.usage.num_completion_tokens
    assert known.usage.num_host_calls == asked.usage.num_host_calls


async def test_a_strict_path_that_allows_steps_allows_those_that_are_known(
    real: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, asked = await both(real, TAKES_ALL, monkeypatch, strict_path="host")
    assert known.result == asked.result
    assert (known.exec_path, known.exec_reason) == (asked.exec_path, asked.exec_reason)
    with pytest.raises(ScriptError, match="strict_path allows device"):
        await real.run(main_of(BEGIN + TAKES_ALL), strict_path="device")


async def test_calls_at_once_take_their_turns(real: Stage) -> None:
    at_once = await real.run(main_of(BEGIN + AT_ONCE))
    in_turn = AT_ONCE.replace(
        "await asyncio.gather(gen.step(), gen.step(), gen.step())", "[await gen.step() for _ in range(3)]"
    )
    assert at_once.result == (await real.run(main_of(BEGIN + in_turn))).result


async def test_the_server_is_called_for_few_of_the_steps(real: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    steps = ScriptGeneration.steps

    async def counted(self: ScriptGeneration, *args: Any, **fields: Any) -> Any:
        found = await steps(self, *args, **fields)
        calls.append(len(found))
        return found

    monkeypatch.setattr(ScriptGeneration, "steps", counted)
    await real.run(main_of(BEGIN + TAKES_ALL))
    assert sum(calls) == 61
    assert len(calls) < 30


@pytest.mark.parametrize("limits", [{"decode_tokens": 60}, {"host_calls": 120}])
async def test_what_a_limit_allows_is_allowed(
    real: Stage, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, asked = await both(real, LEAVES.format(count=59), monkeypatch, limits=limits)
    assert known.result == asked.result
    assert known.usage.num_completion_tokens == 59


@pytest.mark.parametrize("limits", [{"decode_tokens": 31}, {"decode_tokens": 40}, {"host_calls": 33}])
async def test_a_limit_is_reached_where_it_would_be(real: Stage, limits: dict[str, int]) -> None:
    (limit,) = limits
    body = BEGIN + "print(step.token)\n" + TAKES_ALL.replace("seen.append", "print('step'); seen.append")
    with pytest.raises(ScriptLimitExceeded, match=limit):
        await real.run(main_of(body), limits=limits)
    most = limits[limit] + (2 if limit == "decode_tokens" else 0)
    assert real.printed.count("step") <= most


async def test_steps_end_where_the_text_does(real: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind a token that may complete a stop string is not known before it is taken."""
    begin = BEGIN.replace("top=3", "top=3, stop='e'")
    known = await real.run(main_of(begin + TAKES_ALL))
    monkeypatch.setattr(script, "STEPPING", GUESSING)
    asked = await real.run(main_of(begin + TAKES_ALL))
    assert known.result == asked.result
    assert known.usage.num_completion_tokens == asked.usage.num_completion_tokens
    assert known.usage.num_host_calls == asked.usage.num_host_calls


async def test_an_error_of_a_script_among_known_steps_names_its_own_line(real: Stage) -> None:
    body = BEGIN + "for number in range(30):\n    step = await gen.step()\nstep = await gen.step(0)"
    with pytest.raises(ScriptError) as caught:
        await real.run(main_of(body))
    assert [frame.source.strip() for frame in caught.value.frames] == ["step = await gen.step(0)"]


async def test_what_only_looks_like_a_generation_is_left_alone(real: Stage) -> None:
    outcome = await real.run(
        """
class Family:
    def generation(self, number: int = 1) -> int:
        return number

    async def later(self) -> int:
        return 3


class Kin:
    async def generation(self, number: int = 1) -> int:
        return number


async def main(request, lm):
    ctx = await lm.context('one')
    family, kin = Family(), Kin()
    made = ctx.generation(max_tokens=2)
    gen = await made
    return [family.generation(number=5), await kin.generation(number=6), (await gen.step()).finished, str(gen)[:12]]
"""
    )
    assert outcome.result[:3] == [5, 6, False]


SAME = """
ctx = await lm.context('one two three')
gen = await ctx.generation(max_tokens=40, temperature=0.9, seed=3, template_stops=False)
seen, step = [], await gen.step()
while not step.finished:
    seen.append(step.token)
    step = await gen.step()
return [seen, ctx.length]
"""


async def test_names_that_a_script_takes_from_python_are_its_own(real: Stage) -> None:
    plain = await real.run(main_of(SAME))
    taken = "type = str = id = list = isinstance = tuple = int = dict = len = TypeError = repr = None\n\n"
    program = taken + main_of(SAME.replace("ctx.length]", "ctx.length, await ctx.info()]"))
    async with await real.start(program, checks=False) as run:
        outcome = await run.result()
    assert outcome.result[:2] == plain.result
    assert outcome.result[2][0] == plain.result[1]


async def test_classes_of_a_script_with_names_of_the_server_s_are_its_own(real: Stage) -> None:
    program = (
        "class Generation:\n    def __init__(self):\n        self.count = 0\n"
        "    async def step(self):\n        self.count += 1\n        return self.count\n\n\n"
        "class Context:\n    async def generation(self, most=1):\n        return Generation()\n\n\n"
        + main_of("gen = await Context().generation(most=3)\nawait gen.step()\nreturn [await gen.step()]")
    )
    async with await real.start(program, checks=False) as run:
        assert (await run.result()).result == [2]


async def test_a_number_that_only_equals_one_is_refused_among_known_steps(real: Stage) -> None:
    body = """
for number in range(20):
    step = await gen.step()
    for n in (1.0, True):
        try:
            await gen.step(n)
        except ValueError as error:
            seen.append(str(error))
return [len(seen), seen[0]]
"""
    async with await real.start(main_of(BEGIN + body), checks=False) as run:
        count, told = (await run.result()).result
    assert (count, told.split(":")[0]) == (40, "invalid_argument")


async def test_comments_may_stand_within_a_call(real: Stage) -> None:
    plain = await real.run(main_of(SAME))
    broken = SAME.replace("await ctx.generation(", "await (ctx.  # the first. of three\n    generation)(")
    assert (await real.run(main_of(broken))).result == plain.result


@pytest.mark.parametrize(
    ("source", "is_replaced"),
    [
        ("gen = await ctx.generation(top=3)\n", True),
        ("gen = await (await lm.context('x')).generation(**options)\n", True),
        ("made = ctx.generation(top=3)\n", False),
        ("gens = await asyncio.gather(a.generation(), b.generation())\n", False),
        ("gen = await ctx.generation(3)\n", False),
        ("gen = await generation(top=3)\n", False),
        ("# await ctx.generation(top=3)\n", False),
        ("await ctx.generation(\n", False),
        ("await ctx.release()\n", False),
        ("gen = await ctx.generation()\nawait ctx.release()\n", True),
        ("class Context:\n    x = 1\n\ngen = await ctx.generation()\n", False),
    ],
)
async def test_calls_that_are_awaited_at_once_are_replaced(source: str, is_replaced: bool) -> None:
    changed, rest = with_stand_ins(source, (GUESSING, STEPPING))
    assert (changed != source) == bool(rest) == is_replaced
    assert ("wye_release(ctx" in changed) == (is_replaced and "release" in source)
    assert ("wye_generation(" in changed) == is_replaced


@pytest.mark.parametrize(
    "call",
    [
        *("steps(1)", "steps(True)", "steps(-1)", "take(2)", "take('a')", "steps(0, 0)"),
        *("steps(0, choices=-1)", "take(0, -1)", "take(0, 'a')"),
    ],
)
async def test_a_script_cannot_take_what_it_was_not_told(real: Stage, call: str) -> None:
    body = f"""
ctx = await lm.context('one two three')
before = ctx.length
made = ctx.generation(max_tokens=9, temperature=0.0, template_stops=False)
gen = await made
step = await gen.step()
try:
    await gen.{call}
except ValueError as error:
    told = str(error)
await gen.step(20)
return [told, ctx.length - before]
"""
    program = main_of(body)
    async with await real.start(program, checks=False) as run:
        told, length = (await run.result()).result
    assert told.startswith("invalid_argument: ")
    assert length == 9
