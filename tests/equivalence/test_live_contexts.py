"""Contexts held by a real engine: whatever was done to one, it goes on as a fresh prompt of the same history does."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
from engine.engine import open_engine
from engine.errors import InvalidRequest
from engine.request import ConstraintKind, ConstraintSpec
from engine.sampling.params import SamplingParams
from engine.text.model import TextModel
from extensions.generation import Generation
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions
from extensions.runtime import Runtime
from tests.equivalence.harness import STEPS, Step
from tests.tiny_models import write_tiny_model

VOCAB = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


def engine_config(model: Path, step: Step, *, num_pages: int = 128, prefix_cache: bool = True) -> EngineConfig:
    """A small engine that checks its books whenever it is idle."""
    return EngineConfig(
        model=str(model),
        device="cpu",
        weights={"torch": "float32", "native": "bfloat16", "int8": "int8"}[step],  # type: ignore[arg-type]
        step="torch" if step == "torch" else "native",
        seed=0,
        check_integrity=True,
        kv=KVConfig(num_pages=num_pages, prefix_cache=prefix_cache),
        scheduling=SchedulingConfig(max_num_seqs=8, max_batch_tokens=64),
        parallel=ParallelConfig(num_threads=1),
    )


@pytest.fixture(params=STEPS)
async def runtime(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Runtime]:
    """A real engine of few pages in a thread of this process."""
    async with open_engine(build_loop(engine_config(model, request.param, num_pages=40))) as engine:
        yield Runtime(engine, TextModel.load(model))
        await no_page_is_used(engine)


async def no_page_is_used(engine: Any) -> None:
    """Waits until the engine says that nobody holds a page."""
    for _ in range(1200):
        if engine.stats.num_used_pages == 0 and engine.stats.num_running == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{engine.stats.num_used_pages} pages are still held")


def asked(*stop: str, **sampling: Any) -> GenerateOptions:
    sampling = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
    return GenerateOptions(sampling=SamplingParams(**sampling), stop=stop)


async def read(generation: Generation) -> list[int]:
    async with generation:
        return [token_id async for step in generation for token_id in step.token_ids]


async def go_on(context: LiveContext, options: GenerateOptions) -> list[int]:
    return await read(await context.generate(options))


async def plain(runtime: Runtime, token_ids: Sequence[int], options: GenerateOptions) -> list[int]:
    """What a request of this very prompt yields."""
    return await read(await runtime.context(list(token_ids)).generate(options))


SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.2, "seed": 4, "top_p": 0.9, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    {"temperature": 0.8, "seed": 5, "top_k": 20, "presence_penalty": 1.0, "logit_bias": {7: 4.0}},
)


async def test_each_turn_yields_what_a_fresh_prompt_of_the_same_history_yields(runtime: Runtime) -> None:
    context = runtime.open_context([5, 6, 7])
    for turn, sampling in enumerate(SAMPLINGS):
        context.append([20 + turn, 30])
        before = list(context.token_ids)
        options = asked(max_tokens=6, **sampling)
        tokens = await go_on(context, options)
        assert tokens == await plain(runtime, before, options)
        assert context.token_ids == before + tokens
    context.release()


async def test_a_stop_string_leaves_exactly_the_tokens_up_to_its_end_in_the_history(runtime: Runtime) -> None:
    prompt = [9, 8, 7]
    tokens = await plain(runtime, prompt, asked(max_tokens=12))
    text = runtime.text.tokenizer.decode(tokens)
    stop = text[2:4]
    context = runtime.open_context(prompt)
    generation = await context.generate(asked(stop, max_tokens=12))
    kept = await read(generation)
    assert 0 < len(kept) < 12
    assert context.token_ids == prompt + tokens[: len(kept)]
    assert generation.usage.num_completion_tokens == len(kept)
    assert await go_on(context, asked(max_tokens=4)) == await plain(runtime, prompt + kept, asked(max_tokens=4))
    context.release()


async def test_a_generation_that_is_left_keeps_what_it_gave_out(runtime: Runtime) -> None:
    context = runtime.open_context([1, 2, 3])
    async with await context.generate(asked(max_tokens=200)) as generation:
        first = await anext(generation)
        assert context.is_busy
    assert not context.is_busy
    assert context.token_ids[:3] == [1, 2, 3]
    assert context.token_ids[3:][: len(first.token_ids)] == list(first.token_ids)
    history = list(context.token_ids)
    assert await go_on(context, asked()) == await plain(runtime, history, asked())
    context.release()


async def test_64_forks_compute_their_prompt_once(model: Path) -> None:
    async with open_engine(build_loop(engine_config(model, "torch", num_pages=300))) as engine:
        runtime = Runtime(engine, TextModel.load(model))
        prompt = [index % 90 + 3 for index in range(200)]
        context = runtime.open_context(prompt)
        branches = context.fork(64)
        tokens = await asyncio.gather(
            *[go_on(branch, asked(temperature=1.0, seed=at)) for at, branch in enumerate(branches)]
        )
        assert tokens[3] == await plain(runtime, prompt, asked(temperature=1.0, seed=3))
        assert len({tuple(one) for one in tokens}) > 32
        await settled(engine)
        assert engine.stats.num_prefill_tokens <= 200 + 63 + 16
        for one in (context, *branches):
            one.release()
        await no_page_is_used(engine)


async def settled(engine: Any) -> None:
    """Waits for numbers that are newer than what was just done."""
    steps = -1
    while steps != engine.stats.num_steps:
        steps = engine.stats.num_steps
        await asyncio.sleep(1.1)


async def test_info_tells_where_the_pages_are(runtime: Runtime) -> None:
    context = runtime.open_context(list(range(3, 40)))
    assert (await context.info()).residency == "tokens"
    await context.prefill()
    info = await context.info()
    assert (info.length, info.num_computed, info.num_pages, info.residency) == (37, 37, 3, "device")
    (fork,) = context.fork()
    assert (await fork.info()).num_shared_pages == 3
    context.release()
    fork.release()


async def test_a_released_context_ends_what_computes_on_it(runtime: Runtime) -> None:
    context = runtime.open_context([1, 2, 3])
    generation = await context.generate(asked(max_tokens=400))
    await anext(generation)
    context.release()
    context.release()
    with pytest.raises(Exception, match="released"):
        await read(generation)
    for act in (context.mark, context.fork, lambda: context.append([1])):
        with pytest.raises(ValueError, match="released"):
            act()


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_changes_a_context_goes_on_as_a_fresh_prompt(runtime: Runtime, seed: int) -> None:
    rng = random.Random(seed)
    contexts = [runtime.open_context([rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 40))]) for _ in range(2)]
    for _ in range(14):
        context = rng.choice(contexts)
        change = rng.choice(["append", "fork", "rewind", "forget", "prefill", "generate", "generate"])
        if change == "append":
            context.append([rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 20))])
        elif change == "fork":
            contexts += context.fork(rng.randint(1, 2))
        elif change == "rewind" and context.length > 1:
            mark = context.mark()
            context.truncate(rng.randint(1, context.length))
            if context.length == mark.length:
                context.rewind(mark)
        elif change == "forget":
            start = rng.randint(1, context.length)
            context.forget(start, rng.randint(start, context.length))
        elif change == "prefill":
            await context.prefill()
        elif change == "generate":
            sampling = rng.choice(SAMPLINGS)
            options = asked(max_tokens=rng.randint(1, 6), **sampling)
            before = list(context.token_ids)
            assert await go_on(context, options) == await plain(runtime, before, options)
    histories = [list(context.token_ids) for context in contexts]
    together = await asyncio.gather(*[go_on(context, asked()) for context in contexts])
    assert together == [await plain(runtime, one, asked()) for one in histories]
    for context in contexts:
        context.release()


async def steps(context: LiveContext, options: GenerateOptions, *, count: int = 1, top: int = 0) -> list[int]:
    """Steps to the end without deciding anything; returns what was added."""
    start = context.length
    async with await context.stepped(options, top=top) as generation:
        while (await generation.step(count)).finish_reason is None:
            pass
    return context.token_ids[start:]


@pytest.mark.parametrize("count", [1, 3])
async def test_steps_without_a_decision_yield_what_a_plain_generation_yields(runtime: Runtime, count: int) -> None:
    for sampling in SAMPLINGS:
        options = asked(max_tokens=8, **sampling)
        context = runtime.open_context([5, 6, 7])
        assert await steps(context, options, count=count) == await plain(runtime, [5, 6, 7], options)
        context.release()


async def test_penalties_follow_what_was_chosen_and_not_what_was_proposed(runtime: Runtime) -> None:
    sampling: dict[str, Any] = {"temperature": 0.9, "seed": 3, "frequency_penalty": 2.0, "repetition_penalty": 1.5}
    context = runtime.open_context([5, 6, 7])
    async with await context.stepped(asked(max_tokens=12, **sampling), top=-1) as generation:
        for chosen in (50, 50, 51):
            await generation.step()
            generation.choose(chosen)
        proposed = (await generation.step()).distribution
        assert proposed is not None
        generation.choose(proposed.token_ids[0])
    unpenalised = runtime.open_context([5, 6, 7, 50, 50, 51])
    plain_logits = await unpenalised.next(top=-1)
    difference = [a - b for a, b in zip(proposed.logprobs, plain_logits.logprobs, strict=True)]
    assert difference[50] < difference[51] - 1.0 < difference[52] - 2.0
    assert context.token_ids == [5, 6, 7, 50, 50, 51]
    context.release()
    unpenalised.release()


async def test_a_banned_proposal_is_drawn_again_and_no_banned_token_comes_back(runtime: Runtime) -> None:
    context = runtime.open_context([5, 6, 7])
    banned: list[int] = []
    async with await context.stepped(asked(max_tokens=3, temperature=0.0), top=4) as generation:
        for _ in range(4):
            step = await generation.step()
            assert step.token_id is not None
            assert step.token_id not in banned
            assert step.distribution is not None
            assert step.token_id == step.distribution.token_ids[0]
            banned.append(step.token_id)
            generation.ban([step.token_id])
    assert context.token_ids == [5, 6, 7]
    context.release()


async def test_a_distribution_is_whole_and_says_what_a_list_leaves_out(runtime: Runtime) -> None:
    context = runtime.open_context(list(range(3, 30)))
    whole = await context.next(top=-1)
    assert math.fsum(math.exp(one) for one in whole.logprobs) == pytest.approx(1.0, abs=1e-5)
    few = await context.next(top=5)
    assert len(few.token_ids) == 5
    given = math.fsum(math.exp(one) for one in few.logprobs)
    assert few.omitted_mass == pytest.approx(1.0 - given, abs=1e-5)
    assert list(few.logprobs) == pytest.approx(sorted(whole.logprobs, reverse=True)[:5], abs=1e-4)
    assert few.entropy == pytest.approx(-math.fsum(math.exp(one) * one for one in whole.logprobs), rel=1e-4)
    wide = await context.next(top=1, need_mass=0.9)
    assert wide.omitted_mass <= 0.1
    assert 1 - wide.omitted_mass - math.exp(wide.logprobs[-1]) < 0.9
    assert context.length == 27
    context.release()


async def test_scores_are_the_log_probabilities_of_fresh_distributions_and_the_history_is_computed_once(
    runtime: Runtime,
) -> None:
    prompt = list(range(3, 60))
    context = runtime.open_context(prompt)
    continuations = [[7, 8, 9], [7], [], [200, 201]]
    scores = await context.score(continuations)
    reports = await context.examine(continuations, 2)
    assert [len(one) for one in scores] == [3, 1, 0, 2]
    assert context.token_ids == prompt
    for continuation, found, seen in zip(continuations, scores, reports, strict=True):
        history = runtime.open_context(prompt)
        for token_id, logprob, report in zip(continuation, found, seen, strict=True):
            fresh = await history.next(top=-1)
            assert logprob == pytest.approx(fresh.logprobs[token_id], abs=2e-3)
            assert report.logprob == pytest.approx(logprob, abs=2e-3)
            best = sorted(fresh.logprobs, reverse=True)[:2]
            assert report.top_logprobs == pytest.approx(best, abs=2e-3)
            assert [fresh.logprobs[one] for one in report.top_ids] == pytest.approx(best, abs=2e-3)
            history.append([token_id])
        history.release()
    context.release()


async def test_a_constraint_follows_the_tokens_chosen_and_refuses_others(runtime: Runtime) -> None:
    tokenizer = runtime.text.tokenizer
    choice = ConstraintSpec(kind=ConstraintKind.REGEX, source="(a|b)c")
    ids = {char: tokenizer.encode(char, add_special=False)[0] for char in "abcd"}
    context = runtime.open_context([5, 6, 7])
    options = dataclasses.replace(asked(max_tokens=6, ignore_eos=False), constraint=choice)
    async with await context.stepped(options, top=8) as generation:
        step = await generation.step()
        assert step.distribution is not None
        assert set(step.distribution.token_ids) <= {*ids.values(), *range(VOCAB)}
        generation.choose(ids["d"])
        with pytest.raises(InvalidRequest, match="does not allow"):
            await generation.step()
        generation.choose(ids["b"])
        step = await generation.step()
        assert step.token_id == ids["c"]
        assert step.distribution is not None
        assert step.distribution.omitted_mass == 0.0
        while step.finish_reason is None:
            step = await generation.step()
    assert tokenizer.decode(context.token_ids[3:]).startswith("bc")
    context.release()


async def test_steps_of_many_contexts_go_on_beside_each_other_in_a_pool_too_small_for_all(runtime: Runtime) -> None:
    prompts = [[at + 3, *range(10, 60)] for at in range(20)]
    contexts = [runtime.open_context(prompt) for prompt in prompts]
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 9}
    found = await asyncio.gather(*[steps(context, asked(max_tokens=6, **sampling), top=3) for context in contexts])
    assert found == [await plain(runtime, prompt, asked(max_tokens=6, **sampling)) for prompt in prompts]
    for context in contexts:
        context.release()


async def test_stopping_takes_the_chosen_token_and_leaves_a_mere_proposal(runtime: Runtime) -> None:
    context = runtime.open_context([5, 6, 7])
    generation = await context.stepped(asked(max_tokens=6))
    await generation.step()
    generation.choose(44)
    await generation.stop()
    assert context.token_ids == [5, 6, 7, 44]
    async with await context.stepped(asked(max_tokens=6)) as generation:
        await generation.step()
    assert context.token_ids == [5, 6, 7, 44]
    context.release()
