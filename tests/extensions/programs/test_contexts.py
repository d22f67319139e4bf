"""What a script does to token histories."""

from __future__ import annotations

import pytest

from engine.errors import QueueFull
from extensions.errors import ScriptError
from tests.extensions.programs.stage import ANSWER, Stage, main_of
from tests.fakes import ScriptedEngine

CHAT = "<|begin|>user\nName a river.<|end|>\n"
OPENING = "<|begin|>assistant\n"


def prompts(stage: Stage) -> list[str]:
    """What the model was asked to go on from, one a generation."""
    assert isinstance(stage.engine, ScriptedEngine)
    return [stage.text.tokenizer.decode(one.prompt_ids, skip_special=False) for one in stage.engine.requests]


async def test_a_generation_stands_on_what_a_chat_request_stands_on(stage: Stage) -> None:
    await stage.run(main_of("await (await lm.context(request.messages)).generate()"))
    assert prompts(stage) == [CHAT + OPENING]


async def test_a_context_of_text_is_a_text_completion(stage: Stage) -> None:
    await stage.run(main_of("await (await lm.context(request.prompt)).generate()"), prompt="Once upon")
    assert prompts(stage) == ["Once upon"]


async def test_a_context_of_token_ids_is_taken_as_it_is(stage: Stage) -> None:
    await stage.run(main_of("await (await lm.context([260, 261])).generate()"))
    assert isinstance(stage.engine, ScriptedEngine)
    assert stage.engine.last.prompt_ids == [260, 261]


async def test_a_conversation_of_several_rounds(stage: Stage) -> None:
    await stage.run(
        main_of("""
            ctx = await lm.context(request.messages)
            await ctx.generate()
            await ctx.append([{"role": "user", "content": "Another?"}])
            await ctx.generate(max_tokens=2)
            await ctx.append([{"role": "user", "content": "Why?"}])
            await ctx.generate()
        """)
    )
    first = CHAT + OPENING
    second = first + ANSWER + "<|end|>\n<|begin|>user\nAnother?<|end|>\n" + OPENING
    short = stage.text.tokenizer.decode(stage.text.tokenizer.encode(ANSWER, add_special=False)[:2])
    third = second + short + "<|end|>\n<|begin|>user\nWhy?<|end|>\n" + OPENING
    assert prompts(stage) == [first, second, third]


async def test_text_behind_messages_begins_the_answer(stage: Stage) -> None:
    await stage.run(
        main_of("""
            ctx = await lm.context(request.messages)
            await ctx.append("Step by step: ")
            await ctx.generate()
        """)
    )
    assert prompts(stage) == [CHAT + OPENING + "Step by step: "]


async def test_token_ids_are_appended_as_they_are(stage: Stage) -> None:
    await stage.run(
        main_of("""
            ctx = await lm.context(request.messages)
            await ctx.append(await lm.tokenize("<|begin|>system\\nx"))
            await ctx.generate()
        """)
    )
    assert prompts(stage) == [CHAT + "<|begin|>system\nx"]


async def test_a_mark_brings_everything_back(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context(request.messages)
        start = await ctx.mark()
        lengths = [ctx.length]
        for attempt in range(2):
            await ctx.generate()
            lengths.append(ctx.length)
            await ctx.rewind(start)
            lengths.append(ctx.length)
        await ctx.append([{"role": "assistant", "content": "So."}, {"role": "user", "content": "Go on."}])
        await ctx.generate()
        return lengths
        """
    )
    assert seen[0] == seen[2] == seen[4]
    assert seen[1] == seen[3] > seen[0]
    again = CHAT + "<|begin|>assistant\nSo.<|end|>\n<|begin|>user\nGo on.<|end|>\n" + OPENING
    assert prompts(stage) == [CHAT + OPENING, CHAT + OPENING, again]


async def test_a_mark_serves_a_fork_too_but_not_another_history(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("hello there")
        start = await ctx.mark()
        copy = await ctx.fork()
        await copy.append(" and more")
        await copy.rewind(start)
        other = await lm.context("quite another text")
        try:
            await other.rewind(start)
        except ValueError as error:
            return [copy.length == ctx.length, str(error)]
        """
    )
    assert seen == [True, "invalid_argument: the history no longer begins with what the mark stands for"]


async def test_forks_go_their_own_ways(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context(request.messages)
        copies = await ctx.fork(3)
        for at, copy in enumerate(copies):
            await copy.append(str(at))
        answers = await asyncio.gather(*[copy.generate(max_tokens=1) for copy in copies])
        return [len(copies), len(answers), ctx.length, [copy.length for copy in copies]]
        """
    )
    assert sorted(prompts(stage)) == [CHAT + OPENING + str(at) for at in range(3)]
    assert seen[2] < seen[3][0]


async def test_cutting_and_forgetting(stage: Stage) -> None:
    await stage.run(
        main_of("""
            ids = await lm.tokenize("abcdefgh")
            ctx = await lm.context([ids[0]] + ids)
            await ctx.truncate(len(ids))
            await ctx.forget(0, 1)
            await ctx.generate(max_tokens=1)
            await ctx.truncate(1)
            await ctx.generate(max_tokens=1)
        """)
    )
    ids = stage.text.tokenizer.encode("abcdefgh", add_special=False)
    assert isinstance(stage.engine, ScriptedEngine)
    assert [one.prompt_ids for one in stage.engine.requests] == [ids[:-1], ids[:1]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ctx.truncate(10000)", "length must be between 0 and"),
        ("ctx.truncate(-1)", "length must be between 0 and"),
        ("ctx.truncate(1.5)", "length must be a whole number"),
        ("ctx.forget(3, 1)", "a span must lie within"),
        ("ctx.forget(0, 100000)", "a span must lie within"),
        ("ctx.hide(5, 2)", "a span must lie within"),
        ("ctx.drop(0, 100000)", "a span must lie within"),
        ("ctx.drop(0.5, 1)", "start must be a whole number"),
        ("ctx.fork(0)", "n must be a whole number from 1"),
        ("ctx.fork(True)", "n must be a whole number from 1"),
        ("ctx.append(5)", "content must be text, a list of token ids or a list of messages"),
        ("ctx.append({'role': 'user'})", "content must be text, a list of token ids or a list of messages"),
        ("ctx.append(['a'])", "content must be a list of token ids"),
        ("ctx.append([99999999])", "token ids must be between 0 and"),
        ("ctx.append([-1])", "token ids must be between 0 and"),
        ("ctx.append([{'role': 'forbidden', 'content': 'x'}])", "roles must alternate"),
        ("ctx.append([{'role': 'user'}, 3])", "messages[1] must be a dict"),
        ("ctx.append([1] * 5000)", "the history would have"),
        ("ctx.generate(max_tokens=0)", "max_tokens must be at least 1"),
        ("ctx.generate(max_tokens=100000)", "maximum context length"),
        ("ctx.generate(temperature=-1.0)", "temperature must be between"),
        ("ctx.generate(temperature=float('nan'))", "temperature must be between"),
        ("ctx.generate(temperature='hot')", "temperature must be a number"),
        ("ctx.generate(temperature=10 ** 400)", "too large"),
        ("ctx.generate(top_k=1.5)", "top_k must be a whole number"),
        ("ctx.generate(seed=2 ** 70)", "seed must be between"),
        ("ctx.generate(stop='')", "stop must be a text or a list of texts"),
        ("ctx.generate(stop=[3])", "stop must be a text or a list of texts"),
        ("ctx.generate(stop_token_ids=['a'])", "stop_token_ids must be a list of token ids"),
        ("ctx.generate(stop_token_ids=[99999999])", "outside the vocabulary"),
        ("ctx.generate(logit_bias={'a': 1})", "logit_bias must be a dict"),
        ("ctx.generate(logit_bias=[1])", "logit_bias must be a dict"),
        ("ctx.generate(logprobs=99)", "logprobs must be a whole number from 0"),
        ("ctx.generate(logprobs=True)", "logprobs must be a whole number from 0"),
        ("ctx.generate(emit=1)", "emit must be True or False"),
        ("ctx.generate(template_stops='no')", "template_stops must be True or False"),
        ("ctx.generate(min_tokens=9, max_tokens=3)", "min_tokens must be between"),
        ("(await lm.context()).generate()", "the context is empty"),
    ],
)
async def test_a_wrong_argument_is_refused_and_leaves_the_context_as_it_was(
    stage: Stage, call: str, message: str
) -> None:
    source = main_of(f"""
        ctx = await lm.context(request.messages)
        before = ctx.length
        try:
            await {call}
        except Exception as error:
            told = type(error).__name__ + " " + str(error)
        assert ctx.length == before
        answer = await ctx.generate(max_tokens=3)
        return [told]
    """)
    outcome = await stage.run(source, checks=False)
    assert outcome.result[0].startswith("ValueError invalid_argument: ")
    assert message in outcome.result[0]
    assert prompts(stage)[-1] == CHAT + OPENING


@pytest.mark.parametrize("call", ["ctx.generate(1)", "ctx.generate(max_token=1)", "ctx.fork(1, 2)", "lm.now(1)"])
async def test_a_call_of_another_shape_is_a_type_error(stage: Stage, call: str) -> None:
    with pytest.raises(ScriptError) as caught:
        await stage.run(main_of(f"ctx = await lm.context('x')\nawait {call}"), checks=False)
    assert caught.value.kind == "TypeError"


async def test_a_refusal_of_the_engine_leaves_the_context_as_it_was(stage: Stage) -> None:
    assert isinstance(stage.engine, ScriptedEngine)
    stage.engine.refusal = QueueFull(3)
    seen = await stage.value(
        """
        ctx = await lm.context(request.messages)
        before = ctx.length
        try:
            await ctx.generate()
        except RuntimeError:
            return [ctx.length == before]
        """
    )
    assert seen == [True]


async def test_what_a_completion_tells(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        before = ctx.length
        done = await ctx.generate(logprobs=2)
        cut = await ctx.generate(max_tokens=2, stop=["zzz"])
        return [done.text, len(done.tokens), done.finish_reason, cut.finish_reason, len(done.logprobs),
                done.logprobs[0].text, done.logprobs[0].logprob < 0, len(done.logprobs[0].top),
                round(done.mean_logprob, 3) < 0, list(done.usage), done.exec_path, ctx.length - before]
        """
    )
    num_tokens = len(stage.text.tokenizer.encode(ANSWER, add_special=False))
    assert seen[:4] == [ANSWER, num_tokens + 1, "stop", "length"]
    assert ANSWER.startswith(seen[5])
    assert seen[6:9] == [True, 2, True]
    assert seen[9] == [1, 0, num_tokens + 1, 0, 0]
    assert seen[10:] == ["fused", num_tokens + 3]


async def test_the_stop_of_a_text_cuts_the_history_there(stage: Stage) -> None:
    seen = await stage.value(
        """
        ctx = await lm.context("x")
        done = await ctx.generate(stop=[","])
        return [done.text, done.finish_reason, ctx.length == 1 + len(done.tokens), await lm.decode(done.tokens)]
        """
    )
    assert seen[:3] == ["the Loire", "stop", True]
    assert seen[3].startswith("the Loire,")


async def test_a_constraint_is_made_once_and_used_often(stage: Stage) -> None:
    await stage.run(
        main_of("""
            form = await lm.constraint({"choice": ["yes", "no"]})
            ctx = await lm.context("x")
            for at in range(2):
                await ctx.generate(constrain=form, max_tokens=2)
            await ctx.generate(constrain={"json_schema": {"type": "object"}}, max_tokens=2)
        """)
    )
    assert isinstance(stage.engine, ScriptedEngine)
    specs = [one.constraint for one in stage.engine.requests]
    assert stage.engine.compiled == [specs[0]]
    assert specs[0] == specs[1]
    assert specs[0] is not None
    assert specs[2] is not None
    assert (specs[0].kind, specs[0].source) == ("choice", '["yes", "no"]')
    assert (specs[2].kind, specs[2].source) == ("json_schema", '{"type": "object"}')


async def test_options_reach_the_engine(stage: Stage) -> None:
    await stage.run(
        main_of("""
            ctx = await lm.context("x")
            await ctx.generate(max_tokens=3, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, presence_penalty=0.2,
                               frequency_penalty=0.3, repetition_penalty=1.1, logit_bias={"7": 200, "8": -1},
                               min_tokens=1, seed=4, stop_token_ids=[9], template_stops=False)
        """)
    )
    assert isinstance(stage.engine, ScriptedEngine)
    asked = stage.engine.last.sampling
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (3, 0.5, 0.9, 5, 0.1)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.repetition_penalty) == (0.2, 0.3, 1.1)
    assert asked.logit_bias == {7: 100.0, 8: -1.0}
    assert (asked.min_tokens, asked.seed, asked.stop_token_ids, asked.ignore_eos) == (1, 4, (9,), True)
    assert asked.logprobs is None


async def test_tokens_of_a_prompt_are_charged_once_however_many_forks_use_them(stage: Stage) -> None:
    outcome = await stage.run(
        main_of("""
            ctx = await lm.context("a prompt of some words that all of them share")
            copies = await ctx.fork(8)
            await asyncio.gather(*[copy.generate(max_tokens=2) for copy in copies])
            await copies[0].append("more")
            await copies[0].generate(max_tokens=2)
        """)
    )
    tokenizer = stage.text.tokenizer
    length = len(tokenizer.encode("a prompt of some words that all of them share", add_special=True))
    assert outcome.usage.num_prompt_tokens == length + len(tokenizer.encode("more", add_special=False))
    assert outcome.usage.num_completion_tokens == 18
