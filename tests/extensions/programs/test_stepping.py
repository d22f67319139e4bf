"""Generations that the script steps through, distributions, scores."""

from __future__ import annotations

import math

import pytest

from extensions.errors import ScriptError, ScriptLimitExceeded
from extensions.programs.stepping import chosen
from tests.extensions.programs.stage import ANSWER, Stage, main_of
from tests.fakes import ScriptedEngine

STEPS = """
ctx = await lm.context(request.messages)
before = ctx.length
gen = await ctx.generation(max_tokens=60, temperature=0.0, top=4)
out = []
while True:
    step = await gen.step()
    if step.finished:
        break
    await gen.choose(step.token)
    out.append(step.token)
return [await lm.decode(out), step.finish_reason, step.token, len(step.candidates), ctx.length - before]
"""


async def test_taking_what_is_shown_gives_the_sampler_s_answer(stage: Stage) -> None:
    outcome = await stage.run(main_of(STEPS))
    num_tokens = len(stage.text.tokenizer.encode(ANSWER, add_special=False)) + 1
    opening = len(stage.text.tokenizer.encode("<|begin|>assistant\n", add_special=False))
    assert outcome.result == [ANSWER, "stop", -1, 0, num_tokens + opening]
    assert outcome.exec_path == "host"
    assert "ctx.generation" in outcome.exec_reason
    assert outcome.usage.num_completion_tokens == num_tokens


async def test_a_script_may_take_another_token(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        gen = await ctx.generation(max_tokens=3)
        other = (await lm.tokenize("Z"))[0]
        for at in range(3):
            step = await gen.step()
            if at == 1:
                await gen.choose(other)
        step = await gen.step()
        return [step.finished, step.finish_reason, await lm.decode((await lm.tokenize("Z")) + [other])]
        """
    )
    assert seen == [True, "length", "ZZ"]


async def test_a_step_shows_what_could_come(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        gen = await ctx.generation(top=5)
        step = await gen.step()
        best = step.candidates[0]
        await gen.stop()
        await gen.stop()
        return [len(step.candidates), best.token == step.token, best.text == step.text, best.logprob <= 0,
                step.entropy >= 0, 0 <= step.omitted_mass < 1,
                all(a.logprob >= b.logprob for a, b in zip(step.candidates, step.candidates[1:])), ctx.length]
        """
    )
    assert seen == [5, True, True, True, True, True, True, 1]


async def test_several_steps_at_once_take_the_sampler_s_tokens(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        gen = await ctx.generation(max_tokens=6)
        third = await gen.step(3)
        end = await gen.step(9)
        return [third.finished, end.finished, end.finish_reason, ctx.length]
        """
    )
    assert seen == [False, True, "length", 7]


async def test_a_token_can_be_chosen_with_the_step_that_takes_it(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        gen = await ctx.generation(max_tokens=2)
        other = (await lm.tokenize("Z"))[0]
        await gen.step()
        await gen.step(choose=other)
        end = await gen.step(choose=other)
        return [end.finished, ctx.length, end.entropy]
        """
    )
    assert seen == [True, 3, 0.0]


async def test_what_the_script_does_not_read_is_not_computed(stage: Stage) -> None:
    await stage.run(main_of("gen = await (await lm.context('x')).generation()\nawait gen.step()"))
    assert isinstance(stage.engine, ScriptedEngine)
    assert stage.engine.last.readout is None
    await stage.run(main_of("gen = await (await lm.context('x')).generation()\nprint((await gen.step()).entropy)"))
    assert stage.engine.last.readout is not None


async def test_a_banned_token_is_not_taken(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        gen = await ctx.generation(max_tokens=4)
        first = (await gen.step()).token
        await gen.ban([first])
        second = (await gen.step()).token
        await gen.stop()
        return [first == second]
        """
    )
    assert seen == [False]


async def test_a_context_is_busy_until_its_generation_has_ended(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context(request.messages)
        gen = await ctx.generation(max_tokens=9)
        await gen.step()
        try:
            await ctx.generate()
        except ValueError as error:
            told = str(error)
        await gen.stop()
        await ctx.append([{"role": "user", "content": "Go on."}])
        await ctx.generate()
        return [told]
        """
    )
    assert "await or stop that first" in seen[0]
    assert isinstance(stage.engine, ScriptedEngine)
    prompt = stage.text.tokenizer.decode(stage.engine.last.prompt_ids, skip_special=False)
    assert prompt.endswith("<|begin|>assistant\n<|end|>\n<|begin|>user\nGo on.<|end|>\n<|begin|>assistant\n")


async def test_generations_that_main_leaves_open_are_ended(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            kept = []
            for at in range(5):
                kept.append(await (await lm.context("x")).generation())
                await kept[-1].step()
            return [len(kept)]
        """)
    )
    assert outcome.result == [5]
    assert outcome.usage.num_generations == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("gen.step(0)", "n must be a whole number from 1"),
        ("gen.step(True)", "n must be a whole number from 1"),
        ("gen.step(10 ** 9)", "n must be a whole number from 1"),
        ("gen.choose('a')", "token must be a token id"),
        ("gen.choose(1)", "no token is proposed now"),
        ("gen.ban([10 ** 9])", "token ids must be between 0 and"),
        ("gen.ban(3)", "tokens must be a list of token ids"),
        ("other.generation(top=0)", "top must be a whole number from 1"),
        ("other.generation(top=10 ** 9)", "top must be a whole number from 1"),
        ("other.generation(top='all')", "top must be a whole number from 1"),
        ("other.generation(need_mass=2)", "need_mass must be a number from 0 to 1"),
        ("other.generation(temperature=9)", "temperature must be between"),
        ("other.next(top='some')", "or 'all'"),
        ("other.score('text')", "continuations must be a list of texts"),
        ("other.score(['a'], top=21)", "top must be a whole number from 0 to 20"),
        ("other.score([3])", "continuations[0] must be a list of token ids"),
        ("other.choose([])", "at least one"),
        ("(await lm.context()).next()", "the context is empty"),
        ("(await lm.context()).score(['a'])", "the context is empty"),
    ],
)
async def test_what_cannot_be_is_refused_and_the_generation_goes_on(stage: Stage, call: str, message: str) -> None:
    outcome = await stage.run(
        main_of(f"""
            ctx = await lm.context("x")
            other = await lm.context("y")
            gen = await ctx.generation(max_tokens=2)
            try:
                await {call}
            except ValueError as error:
                told = str(error)
            await gen.step(9)
            return [told, ctx.length, other.length]
        """),
        checks=False,
    )
    assert outcome.result[0].startswith("invalid_argument: ")
    assert message in outcome.result[0]
    assert outcome.result[1:] == [3, 1]


async def test_a_distribution_is_looked_at_without_drawing(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context(request.messages)
        before = ctx.length
        few = await ctx.next(top=3)
        whole = await ctx.next(top="all")
        return [len(few.candidates), few.entropy >= 0, few.omitted_mass < 1, len(few.logprobs), ctx.length == before,
                len(whole.candidates), len(whole.logprobs) == lm.model.vocab_size, abs(whole.omitted_mass) < 1e-6]
        """
    )
    assert seen == [3, True, True, 0, True, 0, True, True]
    assert isinstance(stage.engine, ScriptedEngine)
    assert stage.text.tokenizer.decode(stage.engine.last.prompt_ids, skip_special=False).endswith("assistant\n")


async def test_texts_are_scored_behind_the_history(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context(request.messages)
            before = ctx.length
            scores = await ctx.score(["yes", "no", ""])
            choice = await ctx.choose([await lm.tokenize("yes"), await lm.tokenize("no")])
            return [[len(one) for one in scores], sum(scores[0]) < 0, choice.best, round(sum(choice.probabilities), 6),
                    ctx.length == before]
        """)
    )
    yes, no = (len(stage.text.tokenizer.encode(text, add_special=False)) for text in ("yes", "no"))
    assert outcome.result[0] == [yes, no, 0]
    assert outcome.result[1] is True
    assert outcome.result[3:] == [1.0, True]
    assert outcome.exec_path == "fused"


def test_a_choice_is_normalised_over_the_texts() -> None:
    choice = chosen([[-1.0, -1.0], [-1.0], [-1000.0]])
    assert choice.best == 1
    assert choice.probabilities[1] == pytest.approx(math.exp(-1) / (math.exp(-1) + math.exp(-2)))
    assert sum(choice.probabilities) == pytest.approx(1.0)


@pytest.mark.parametrize("call", ["(await lm.context('x')).generation()", "(await lm.context('x')).next()"])
async def test_strict_path_refuses_a_slower_lane(stage: Stage, call: str) -> None:
    with pytest.raises(ScriptError) as caught:
        await stage.run(main_of(f"await {call}"), strict_path="fused")
    assert caught.value.code == "capability_missing"
    assert "strict_path allows fused" in str(caught.value)
    await stage.run(main_of(f"await {call}"), strict_path="host")


async def test_steps_count_against_the_limit_of_tokens(stage: Stage) -> None:
    with pytest.raises(ScriptLimitExceeded) as caught:
        await stage.run(
            main_of("""
                gen = await (await lm.context("x")).generation()
                while True:
                    try:
                        await gen.step()
                    except BaseException:
                        pass
            """),
            limits={"decode_tokens": 3},
        )
    assert caught.value.limit == "decode_tokens"
