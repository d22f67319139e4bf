"""Rules of a script's own that judge guesses, in generations and in passes, over a real engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extensions.programs.stage import Stage, main_of

HEAD = """
LENIENT = '''
def verify(logits, draft):
    return where(draft >= 0, draft, argmax(logits))
'''
LIMITED = '''
state.left = 3
def verify(logits, draft):
    stands = (draft >= 0) & (state.left > 0)
    state.left = state.left - int(stands)
    return where(stands, draft, argmax(logits))
'''
def wrong(tokens, k):
    return [7, 8, 9][:k]
"""
BASE = "max_tokens=12, repetition_penalty=1.0, template_stops=False"


@pytest.fixture
def stage(real_stage: Stage) -> Stage:
    """All of these programs run over a real engine."""
    return real_stage


async def value(stage: Stage, body: str) -> Any:
    """What a program of these lines returns."""
    return (await stage.run(HEAD + main_of(body))).result


async def test_the_greedy_rule_takes_what_greedy_decoding_takes_whatever_is_guessed(stage: Stage) -> None:
    plain, guessed, counts = await value(
        stage,
        f"""
ctx = await lm.context("a b c d")
plain = await (await ctx.fork()).generate({BASE}, temperature=0.0)

def half(tokens, k):
    made = len(tokens) - ctx.length
    return [*plain.tokens[made:][:2], 7][:k]

found = []
for drafter in (half, wrong):
    answer = await (await ctx.fork()).generate({BASE}, temperature=1.0, seed=3, drafter=drafter, verify="greedy")
    found.append([answer.tokens, answer.usage.accepted_tokens, answer.usage.drafted_tokens])
return [plain.tokens, [one[0] for one in found], [one[1:] for one in found]]
""",
    )
    assert guessed == [plain, plain]
    assert counts[0][0] >= 6
    assert counts[1][0] < counts[1][1]


async def test_rejection_at_temperature_zero_is_greedy_decoding_and_repeats_itself_at_any_other(stage: Stage) -> None:
    plain, cold, warm = await value(
        stage,
        f"""
def drawn(tokens, k):
    return [7, 8][:k], [{{7: 0.5, 9: 0.5}}, {{8: 1.0}}][:k]

ctx = await lm.context("a b c d")
plain = await (await ctx.fork()).generate({BASE}, temperature=0.0)
cold = await (await ctx.fork()).generate({BASE}, temperature=0.0, drafter=drawn, verify="rejection")
warm = []
for _ in range(2):
    answer = await (await ctx.fork()).generate({BASE}, temperature=0.8, top_k=20, seed=5, drafter=drawn,
                                               verify="rejection", constrain={{"regex": "([a-z] ?)+"}})
    warm.append(answer.text)
return [plain.tokens, cold.tokens, warm]
""",
    )
    assert plain == cold
    assert warm[0] == warm[1]
    assert warm[0].replace(" ", "").islower()


async def test_a_rule_of_the_scripts_says_which_guesses_stand(stage: Stage) -> None:
    lenient, limited, drafted = await value(
        stage,
        f"""
ctx = await lm.context("a b c d")
found = []
for rule in (LENIENT, LIMITED):
    found.append(await (await ctx.fork()).generate({BASE}, drafter=wrong, verify=rule))
counts = [[one.usage.accepted_tokens, one.usage.drafted_tokens] for one in found]
return [found[0].tokens, found[1].tokens, counts]
""",
    )
    # The first token is drawn before anything is guessed, and one behind each guess.
    assert lenient[1:4] == lenient[5:8] == [7, 8, 9]
    assert limited[1:4] == [7, 8, 9]
    assert limited[5:8] != [7, 8, 9]
    assert drafted[0][0] == drafted[0][1] == 8
    assert drafted[1][0] == 3


async def test_a_rule_without_a_drafter_draws_every_token(stage: Stage) -> None:
    assert await value(
        stage,
        f"""
ctx = await lm.context("a b c d")
plain = await (await ctx.fork()).generate({BASE}, temperature=0.0)
judged = await (await ctx.fork()).generate({BASE}, temperature=0.0, verify="rejection")
return [plain.tokens == judged.tokens, judged.exec_path]
""",
    ) == [True, "device"]


async def test_a_loop_of_the_scripts_own_takes_a_rule_too(stage: Stage) -> None:
    assert await value(
        stage,
        f"""
ctx = await lm.context("a b c d")
drafting = await ctx.drafting({BASE}, verify=LENIENT)
seen, out = await drafting.next(), []
while seen.wanted:
    seen = await drafting.next([5, 6])
    out += seen.tokens
return out[:2]
""",
    ) == [5, 6]


async def test_a_program_that_guesses_by_draws_goes_with_a_rule(stage: Stage) -> None:
    assert await value(
        stage,
        f"""
source = "def propose(prev):\\n    return (7, float(one_hot(7))), (8, float(one_hot(8) | one_hot(9)))\\n"
ctx = await lm.context("a b c d")
answer = await ctx.generate({BASE}, drafter=await lm.program(source), verify=LENIENT)
return [answer.tokens[1:3], answer.exec_path]
""",
    ) == [[7, 8], "device"]


async def test_a_pass_over_a_guess_keeps_what_stands_and_draws_what_comes_behind(stage: Stage) -> None:
    out, plain, kept, same = await value(
        stage,
        f"""
answer = await (await lm.context("a b c d")).generate({BASE}, temperature=0.0)
ctx = await lm.context("a b c d")
out, kept = [answer.tokens[0]], []
while len(out) < 9:
    right = [1, 2, 0, 3][len(kept) % 4]
    guess = [token if at < right else (token + 1) % 300 for at, token in enumerate(answer.tokens[len(out):][:3])]
    fwd = lm.forward()
    await fwd.embed([out[-1], *guess])
    await fwd.state([ctx], {{"fold": "probe.kept"}})
    await fwd.epilogue("greedy")
    made = await fwd.run()
    kept.append(made.folded[0] - 1)
    out += [*guess[:kept[-1]], made.token]
return [out, answer.tokens, kept, made.probes["kept"] == kept[-1] + 1]
""",
    )
    assert out[:9] == plain[:9]
    assert kept[:4] == [1, 2, 0, 3]
    assert same is True


async def test_a_pass_judges_as_a_generation_does_with_the_same_seed(stage: Stage) -> None:
    generated, passed = await value(
        stage,
        """
q = [{40 + at: 0.5, 60 + at: 0.5} for at in range(3)]
ctx = await lm.context("a b c d")
await ctx.append([9])
drafting = await (await ctx.fork()).drafting(max_tokens=8, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=11,
                                             repetition_penalty=1.0, template_stops=False, verify="rejection")
first = (await drafting.next()).tokens
seen = await drafting.next([40, 41, 42], q)
generated = seen.tokens
await drafting.stop()
await ctx.append([])
fwd = lm.forward()
await fwd.embed([*first, 40, 41, 42])
await fwd.state([ctx], {"fold": "probe.kept"})
await fwd.epilogue("rejection", q=q)
made = await fwd.run(seed=11)
return [generated, [*[40, 41, 42][:made.folded[0] - 1], made.token]]
""",
    )
    assert generated == passed


REFUSED: dict[str, tuple[str, str]] = {
    "no name of one": (f'await ctx.generate({BASE}, verify="typical")', "invalid_argument: verify must be one of"),
    "something else": (
        f'await ctx.generate({BASE}, verify="def sample(logits):\\\\n    return 1\\\\n")',
        "program_invalid: `sample` draws tokens",
    ),
    "beside a sampler": (
        f'await ctx.generate({BASE}, verify="greedy", sampler="def sample(logits):\\\\n    return 1\\\\n")',
        "invalid_argument: sampler and verify",
    ),
    "a rule as a sampler": (f"await ctx.generate({BASE}, sampler=LENIENT)", "program_invalid: `verify` judges guesses"),
    "a rule that cannot be": (
        f'await ctx.generate({BASE}, verify="def verify(p):\\\\n    return p\\\\n")',
        "program_invalid: line 2, column 12",
    ),
    "no tokens embedded": (
        """await fwd.embed_next([ctx])
await fwd.epilogue("greedy")
await fwd.run()""",
        "invalid_argument: a guess is judged behind rows",
    ),
    "rows left out": (
        'await fwd.readout([0])\nawait fwd.epilogue("greedy")\nawait fwd.run()',
        "invalid_argument: a guess",
    ),
    "too many": (
        'await fwd.embed([5] * 66)\nawait fwd.state([ctx])\nawait fwd.epilogue("greedy")\nawait fwd.run()',
        "invalid_argument: a guess of 65 tokens",
    ),
    "a state in a pass": (
        "await fwd.epilogue(await lm.program(LIMITED))\nawait fwd.run()",
        "program_invalid: all rows of a pass",
    ),
    "q that it was not drawn from": (
        'await fwd.epilogue("rejection", q=[{9: 1.0}])\nawait fwd.run()',
        "invalid_argument: q[0]: token 6 cannot",
    ),
    "q of another length": (
        'await fwd.epilogue("rejection", q=[])\nawait fwd.run()',
        "invalid_argument: q must be",
    ),
    "q of no guess": (
        'await fwd.epilogue(await lm.program("def sample(logits):\\\\n    return 1\\\\n"), q=[{9: 1.0}])',
        "invalid_argument: q is what a guess",
    ),
}


@pytest.mark.parametrize(("lines", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_judge_is_refused_and_nothing_is_left(stage: Stage, lines: str, text: str) -> None:
    body = "\n".join("    " + line for line in lines.replace("\\\\n", "\\n").split("\n"))
    error, length = await value(
        stage,
        f"""
ctx = await lm.context("a b c")
before = ctx.length
fwd = lm.forward()
await fwd.embed([5, 6])
await fwd.state([ctx])
error = ""
try:
{body}
except ValueError as failed:
    error = str(failed)
return [error, ctx.length - before]
""",
    )
    assert error.startswith(text)
    assert length == 0
