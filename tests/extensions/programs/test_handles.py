"""What a script holds of the server: each thing is itself and nothing else."""

from __future__ import annotations

from tests.extensions.programs.stage import Stage


async def test_two_contexts_are_two_things(stage: Stage) -> None:
    seen = await stage.value(
        """
        first, second = await lm.context("one"), await lm.context("one")
        forks = await first.fork(3)
        kept = [first, second, *forks]
        kept.remove(second)
        return [first == first, first == second, first != second, second in [first], [first, second].index(second),
                forks.index(forks[2]), kept[0] is first, second in kept, forks[1] in kept, len(kept)]
        """
    )
    assert seen == [True, False, True, False, 1, 2, True, False, True, 4]


async def test_a_thing_is_the_same_wherever_a_script_keeps_it(stage: Stage) -> None:
    seen = await stage.value(
        """
        async def same(ctx):
            return ctx

        ctx = await lm.context("one")
        mark, other = await ctx.mark(), await ctx.mark()
        gen = await (await ctx.fork()).generation(max_tokens=2)
        return [await same(ctx) == ctx, {"ctx": ctx}["ctx"] == ctx, mark == mark, mark == other, gen == gen,
                lm == lm, lm.model == lm.model, request == request]
        """
    )
    assert seen == [True, True, True, False, True, True, True, True]


async def test_answers_that_say_the_same_are_equal(stage: Stage) -> None:
    seen = await stage.value(
        """
        one, two = await lm.context("x"), await lm.context("x")
        first, second = await one.generate(max_tokens=3), await two.generate(max_tokens=3)
        return [first == second, first.usage == second.usage]
        """
    )
    assert seen == [True, True]
