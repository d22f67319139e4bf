"""Functions and device programs of a script as drafters, on an engine."""

from __future__ import annotations

from typing import Any

import pytest

from extensions.errors import ScriptError
from extensions.sandbox.guessing import GUESSING
from extensions.sandbox.stand_ins import with_stand_ins
from tests.extensions.programs.stage import Stage, main_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BASE = "max_tokens=24, temperature=0.8, seed=3, template_stops=False"


async def run(real: Stage, body: str, *, before: str = "", **request: Any) -> Any:
    """The result of a `main` with these lines, on `ctx`, behind some functions."""
    source = before + "\n\n" + main_of("ctx = await lm.context('one two three')\n" + body)
    return (await real.run(source, **request)).result


KNOWING = """
answer = []
asked = []

def propose(tokens: list[int], k: int) -> list[int]:
    asked.append([len(tokens), k])
    at = len(tokens) - answer[0]
    return answer[1 + at :][:min(k, 7)]
"""


async def test_a_function_that_knows_the_answer_is_asked_seldom_and_changes_nothing(real: Stage) -> None:
    body = f"""
plain = await (await ctx.fork()).generate({BASE}, logprobs=1)
answer.append(ctx.length)
answer.extend(plain.tokens)
guessed = await ctx.generate({BASE}, logprobs=1, drafter=propose)
return [plain.tokens, guessed.tokens, plain.text == guessed.text, plain.mean_logprob - guessed.mean_logprob, asked,
        guessed.usage.drafted_tokens, guessed.usage.accepted_tokens, guessed.exec_path, ctx.length]
"""
    plain, guessed, same_text, difference, asked, drafted, accepted, path, length = await run(
        real, body, before=KNOWING
    )
    assert guessed == plain
    assert same_text
    assert abs(difference) < 1e-4
    assert asked[0] == [length - 24 + 1, 22]
    assert len(asked) <= 4
    assert drafted == accepted >= 18
    assert path == "host"


async def test_drafters_of_all_kinds_of_functions_are_called(real: Stage) -> None:
    before = """
class Guesser:
    def __init__(self):
        self.count = 0

    def guess(self, tokens, k):
        self.count += 1
        return [5]

async def later(tokens, k):
    await asyncio.sleep(0)
    return [5]
"""
    body = f"""
guesser = Guesser()
found = [(await (await ctx.fork()).generate({BASE})).tokens]
found.append((await (await ctx.fork()).generate({BASE}, drafter=guesser.guess)).tokens)
found.append((await (await ctx.fork()).generate(
    {BASE},
    drafter=lambda tokens, k: None,
)).tokens)
found.append((await (await ctx.fork())  .generate ({BASE}, drafter=later)).tokens)
for kind in ("prompt_lookup", None, {{"max_tokens": 4}}):
    found.append((await (await ctx.fork()).generate({BASE}, drafter=kind)).tokens)
return [found, guesser.count]
"""
    found, count = await run(real, body, before=before, checks=False)
    assert all(tokens == found[0] for tokens in found)
    assert len(found) == 7
    assert count >= 20


async def test_drawn_guesses_of_a_function_are_accepted_or_replaced(real: Stage) -> None:
    before = """
def propose(tokens, k):
    q = {5: 0.25, 6: 0.5, 7: 0.25}
    return [6, 5][:k], q
"""
    body = f"""
one = await (await ctx.fork()).generate({BASE}, drafter=propose)
again = await (await ctx.fork()).generate({BASE}, drafter=propose)
return [one.tokens == again.tokens, len(one.tokens), one.usage.drafted_tokens, one.usage.accepted_tokens]
"""
    same, length, drafted, accepted = await run(real, body, before=before)
    assert same
    assert length == 24
    assert drafted > accepted


async def test_a_device_program_is_a_drafter(real: Stage) -> None:
    program = "def propose(prev, by):\n    return prev + by, prev\n"
    body = f"""
plain = await (await ctx.fork()).generate({BASE})
guess = await lm.program({program!r}, by=1)
guessed = await (await ctx.fork()).generate({BASE}, drafter=guess)
text = await ctx.generate({BASE}, drafter="def propose(prev):\\n    return prev\\n")
return [plain.tokens == guessed.tokens == text.tokens, guessed.usage.drafted_tokens > 0, guessed.exec_path]
"""
    assert await run(real, body) == [True, True, "device"]


async def test_an_error_of_the_function_is_the_scripts_and_frees_the_context(real: Stage) -> None:
    before = """
def propose(tokens, k):
    raise KeyError("nothing")
"""
    body = f"""
try:
    await ctx.generate({BASE}, drafter=propose)
except KeyError:
    return len((await ctx.generate({BASE})).tokens)
"""
    assert await run(real, body, before=before) == 24
    with pytest.raises(ScriptError, match="nothing") as caught:
        await run(real, f"await ctx.generate({BASE}, drafter=propose)", before=before)
    assert [frame.line for frame in caught.value.frames] == [8, 3]
    assert caught.value.frames[0].source.strip() == f"await ctx.generate({BASE}, drafter=propose)"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[1.5]", "list of token ids"),
        ("[100000]", "between 0 and"),
        ("[-1]", "between 0 and"),
        ("([5], {5: -1.0})", "no number from 0"),
        ("([5], {6: 1.0})", "cannot have been drawn"),
        ("([5], [])", "one for each token"),
        ("([5], {'5': 1.0})", "no token id"),
        ("([5], {5: 1.0}, 3)", "list of token ids"),
        ("7", "list of token ids"),
    ],
)
async def test_what_is_no_guess_is_an_invalid_argument(real: Stage, returned: str, message: str) -> None:
    before = f"def propose(tokens, k):\n    return {returned}\n"
    with pytest.raises(ScriptError, match=message) as caught:
        await run(real, f"await ctx.generate({BASE}, drafter=propose)", before=before, checks=False)
    assert caught.value.code == "invalid_argument"


async def test_a_function_that_reaches_the_server_unnamed_is_refused_with_a_reason(real: Stage) -> None:
    with pytest.raises(ScriptError, match="names it"):
        await run(
            real, f"options = {{'drafter': lambda tokens, k: []}}\nawait ctx.generate({BASE}, **options)", checks=False
        )
    with pytest.raises(ScriptError, match="for `sampler`"):
        await run(real, f"await ctx.generate({BASE}, drafter='def sample(prev):\\n    return prev\\n')")
    with pytest.raises(ScriptError, match="for `drafter`"):
        await run(real, f"await ctx.generate({BASE}, sampler='def propose(prev):\\n    return prev\\n')")


async def test_a_script_may_guess_step_by_step(real: Stage) -> None:
    body = f"""
drafting = await ctx.drafting({BASE})
tokens = []
seen = await drafting.next()
while seen.wanted:
    tokens.extend(seen.tokens)
    seen = await drafting.next([tokens[-1]])
tokens.extend(seen.tokens)
done = await drafting.completion()
return [tokens == done.tokens, len(tokens), ctx.length - len(drafting.history)]
"""
    assert await run(real, body) == [True, 24, 24]


async def test_a_drafting_that_is_stopped_or_left_is_free_again(real: Stage) -> None:
    body = f"""
drafting = await ctx.drafting({BASE})
await drafting.next()
await drafting.next([1])
await drafting.stop()
try:
    await drafting.next()
except ValueError as error:
    stopped = str(error)
length = ctx.length
await ctx.drafting({BASE})
return [stopped, length]
"""
    stopped, length = await run(real, body)
    assert "was stopped" in stopped
    assert length > 3
    await until(lambda: real.engine.stats.num_running + real.engine.stats.num_waiting == 0)


async def test_a_stop_string_ends_a_guessed_text_as_any(real: Stage) -> None:
    body = f"""
plain = await (await ctx.fork()).generate({BASE})
stop = plain.text[4:7]
one = await (await ctx.fork()).generate({BASE}, stop=stop)
two = await ctx.generate({BASE}, stop=stop, drafter=lambda tokens, k: plain.tokens[1:5])
return [one.text == two.text, one.tokens == two.tokens, one.finish_reason, two.finish_reason]
"""
    assert await run(real, body) == [True, True, "stop", "stop"]


async def test_a_script_without_functions_as_drafters_is_run_as_it_is() -> None:
    for source in ("x = 1\n", "await ctx.generate(drafter='none')\n", "y = f(drafter=propose)\n", "drafter ("):
        assert with_stand_ins(source, (GUESSING,)) == (source, "")


async def test_only_the_call_itself_is_changed_and_no_line_moves() -> None:
    source = "a = 'é'; b = await (x\n  .y).generate(\n  drafter=z)  # .generate(drafter=\n"
    changed, _ = with_stand_ins(source, (GUESSING,))
    assert changed == (
        "a = 'é'; b = await wye_generate((x\n  .y), \n  drafter=z)  # .generate(drafter=\n" + GUESSING.code
    )
    nested, _ = with_stand_ins("a.generate(drafter=f).generate(drafter=g(b.generate(drafter=h)))\n", (GUESSING,))
    assert nested.startswith("wye_generate(wye_generate(a, drafter=f), drafter=g(wye_generate(b, drafter=h)))\n")
