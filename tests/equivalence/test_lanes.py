"""Contexts that draw together in a real engine: each token is what a program makes of fresh computations of both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.engine import open_engine
from engine.errors import ContextTooLong, InvalidRequest
from engine.programs.binding import bind
from engine.programs.reference import run
from engine.programs.values import StepValues
from engine.request import ConstraintKind, ConstraintSpec, ProgramSpec
from engine.sampling.params import SamplingParams
from engine.sampling.random import mix64, stream_key
from engine.text.model import TextModel
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions
from extensions.runtime import Runtime
from tests.equivalence.harness import STEPS
from tests.equivalence.test_live_contexts import asked, engine_config, go_on, no_page_is_used, plain, read
from tests.tiny_models import write_tiny_model

GAMMA = 0x9E3779B97F4A7C15
GUIDE = """
state.turn = 0

def sample(lanes, key, prev, step, history, counts, scale):
    mixed = lanes[1].logits + scale * (lanes[0].logits - lanes[1].logits)
    state.turn = state.turn + step + history[-1] - prev + 1
    probe.turn = state.turn
    probe.best = argmax(lanes[0].logits)
    return gumbel_argmax(mixed * 4.0 - 0.5 * float(counts), key)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(params=STEPS)
async def runtime(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Runtime]:
    """A real engine of few pages in a thread of this process."""
    async with open_engine(build_loop(engine_config(model, request.param, num_pages=40))) as engine:
        yield Runtime(engine, TextModel.load(model))
        await no_page_is_used(engine)


def guided(scale: float = 1.5, *, source: str = GUIDE, **sampling: Any) -> GenerateOptions:
    """Draws by a program over lanes."""
    fields = {"max_tokens": 8, "seed": 11, "ignore_eos": True, **sampling}
    return GenerateOptions(
        sampling=SamplingParams(**fields),
        report_tokens=False,
        program=ProgramSpec(source=source, parameters={"scale": scale} if "scale" in source else {}),
    )


async def logits_of(runtime: Runtime, history: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Up to a constant, from a context that nobody computed on before."""
    runtime_context = runtime.open_context(history, salt=str(random.random()))
    try:
        return np.array((await runtime_context.next(top=-1)).logprobs, dtype=np.float32)
    finally:
        runtime_context.release()


async def expected(runtime: Runtime, histories: list[list[int]], scale: float, count: int, seed: int = 11) -> list[int]:
    """The same token by token, with the reference and fresh computations of every history."""
    bound = bind(GUIDE, {"scale": scale}, runtime.info.vocab_size)
    drawn: list[int] = []
    state = None
    for _ in range(count):
        first = [*histories[0], *drawn]
        step = StepValues(
            vocab_size=runtime.info.vocab_size,
            lanes=[await logits_of(runtime, [*history, *drawn]) for history in histories],
            key=mix64(stream_key(seed, 0) + (len(first) + 1) * GAMMA),
            step=len(drawn),
            history=np.array(first),
            counts=np.bincount(drawn, minlength=runtime.info.vocab_size),
        )
        found = run(bound.graph, step, bound.parameters, state)
        drawn.append(found.token)
        state = found.state
    return drawn


async def test_each_token_is_what_the_program_makes_of_fresh_computations(runtime: Runtime) -> None:
    histories = [list(range(5, 60)), [9, 8, 7]]
    lanes = [runtime.open_context(history) for history in histories]
    generation = await lanes[0].generate(guided(), beside=lanes[1:])
    tokens = await read(generation)
    assert tokens == await expected(runtime, histories, 1.5, 8)
    assert [lane.token_ids for lane in lanes] == [[*history, *tokens] for history in histories]
    assert [noted["turn"] for noted in generation.probes] == [sum(range(1, count + 1)) for count in range(1, 9)]
    assert all(0 <= noted["best"] < runtime.info.vocab_size for noted in generation.probes)  # type: ignore[operator]
    more = await read(await lanes[0].generate(guided(2.0, seed=4), beside=lanes[1:]))
    assert more == await expected(runtime, [[*history, *tokens] for history in histories], 2.0, 8, seed=4)
    for lane in lanes:
        history = list(lane.token_ids)
        assert await go_on(lane, asked()) == await plain(runtime, history, asked())
        lane.release()


async def test_a_lane_alone_with_a_weight_of_one_draws_what_it_would_alone(runtime: Runtime) -> None:
    source = "def sample(lanes, key):\n    return gumbel_argmax(lanes[1].logits, key)\n"
    lanes = [runtime.open_context([5, 6, 7]), runtime.open_context([9, 9, 9])]
    together = await read(await lanes[0].generate(guided(source=source), beside=lanes[1:]))
    alone = await plain(runtime, [9, 9, 9], asked(max_tokens=8, temperature=1.0, seed=11))
    assert together == alone
    for lane in lanes:
        lane.release()


async def test_forks_and_other_requests_do_not_change_what_lanes_draw(runtime: Runtime) -> None:
    root = runtime.open_context(list(range(5, 45)))
    (fork,) = root.fork()
    fork.append([3, 4])
    others = [runtime.open_context([20 + at, 30]) for at in range(2)]
    together = asyncio.create_task(_drawn([root, fork], guided()))
    beside = await asyncio.gather(*[go_on(other, asked(max_tokens=20)) for other in others])
    assert await together == await expected(runtime, [list(range(5, 45)), [*range(5, 45), 3, 4]], 1.5, 8)
    for other, tokens in zip(others, beside, strict=True):
        assert tokens == await plain(runtime, other.token_ids[:2], asked(max_tokens=20))
    for one in (root, fork, *others):
        one.release()


async def _drawn(lanes: list[LiveContext], options: GenerateOptions) -> list[int]:
    return await read(await lanes[0].generate(options, beside=lanes[1:]))


@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held to a language"])
async def test_lanes_that_must_yield_their_pages_draw_the_same_tokens(model: Path, is_held: bool) -> None:
    language = ConstraintSpec(kind=ConstraintKind.REGEX, source="[a-h ]{900,}")
    async with open_engine(build_loop(engine_config(model, "torch", num_pages=24))) as engine:
        runtime = Runtime(engine, TextModel.load(model))
        pairs = [
            [runtime.open_context([at + 3, *range(5, 40)]), runtime.open_context([at + 3, 8, 9])] for at in range(4)
        ]
        histories = [[list(lane.token_ids) for lane in pair] for pair in pairs]
        options = guided(max_tokens=60)
        if is_held:
            options = replace(guided(max_tokens=60, frequency_penalty=0.5), constraint=language)
            first = [runtime.open_context([3]), runtime.open_context([4])]  # compiles it, so that all others meet
            await _drawn(first, replace(guided(max_tokens=2), constraint=language))
            for lane in first:
                lane.release()
        drawn = await asyncio.gather(*[_drawn(pair, options) for pair in pairs])
        async with asyncio.timeout(60):
            while engine.stats.num_preemptions == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for pair in pairs:
            for lane in pair:
                lane.release()
        for tokens, history in zip(drawn, histories, strict=True):
            if not is_held:
                assert tokens[:6] == await expected(runtime, history, 1.5, 6)
            again = [runtime.open_context(one) for one in history]
            assert await _drawn(again, options) == tokens
            if is_held:
                text = runtime.text.tokenizer.decode(tokens)
                assert set(text) <= set("abcdefgh "), text
            for lane in again:
                lane.release()
        await no_page_is_used(engine)


async def test_a_draw_that_is_left_keeps_what_it_gave_out_in_every_lane(runtime: Runtime) -> None:
    lanes = [runtime.open_context([1, 2, 3]), runtime.open_context([4, 5])]
    async with await lanes[0].generate(guided(max_tokens=200), beside=lanes[1:]) as generation:
        await anext(generation)
        assert lanes[1].is_busy
        with pytest.raises(ValueError, match="computes"):
            lanes[1].append([1])
    assert not lanes[1].is_busy
    tokens = lanes[0].token_ids[3:]
    assert tokens
    assert lanes[1].token_ids == [4, 5, *tokens]
    history = list(lanes[1].token_ids)
    assert await go_on(lanes[1], asked()) == await plain(runtime, history, asked())
    for lane in lanes:
        lane.release()


async def test_a_failing_program_leaves_every_lane_as_it_was(runtime: Runtime) -> None:
    lanes = [runtime.open_context([1, 2, 3]), runtime.open_context([4, 5])]
    source = "def sample(lanes, step):\n    return where(step < 3, argmax(lanes[1].logits), -5)\n"
    with pytest.raises(InvalidRequest, match="returned a token"):
        await _drawn(lanes, guided(source=source))
    assert [lane.token_ids for lane in lanes] == [[1, 2, 3], [4, 5]]
    for lane in lanes:
        lane.release()


async def test_releasing_one_lane_ends_the_draw_and_frees_the_others(runtime: Runtime) -> None:
    lanes = [runtime.open_context([1, 2, 3]), runtime.open_context([4, 5])]
    generation = await lanes[0].generate(guided(max_tokens=300), beside=lanes[1:])
    await anext(generation)
    lanes[1].release()
    with pytest.raises(Exception, match="released"):
        await read(generation)
    assert not lanes[0].is_busy
    assert await go_on(lanes[0], asked()) == await plain(runtime, lanes[0].token_ids[:-8], asked())
    lanes[0].release()


async def test_a_context_that_the_engine_lost_is_opened_again_for_all_lanes(runtime: Runtime) -> None:
    lanes = [runtime.open_context([5, 6, 7]), runtime.open_context([9, 8, 7])]
    await lanes[0].prefill()
    await lanes[1].prefill()
    runtime.engine.tell(_release_of(lanes[1]))
    assert await _drawn(lanes, guided()) == await expected(runtime, [[5, 6, 7], [9, 8, 7]], 1.5, 8)
    for lane in lanes:
        lane.release()


def _release_of(context: LiveContext) -> Any:
    from engine.contexts.commands import ReleaseContexts

    return ReleaseContexts([context._link._context_id])


REFUSED: dict[str, tuple[dict[str, Any], list[list[int]], str]] = {
    "an empty context": ({}, [[1], []], "empty"),
    "reports": ({"logprobs": 2}, [[1], [2]], "report no log-probabilities"),
    "no tokens": ({"max_tokens": 0}, [[1], [2]], "at least one"),
    "too many lanes": ({}, [[1]] * 9, "at most 8"),
    "what does not fit together": ({"max_tokens": 400}, [[1], [2]], "maximum context length"),
}


@pytest.mark.parametrize(("sampling", "histories", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_draw_together_is_refused_before_any_work(
    runtime: Runtime, sampling: dict[str, Any], histories: list[list[int]], text: str
) -> None:
    lanes = [runtime.open_context(history) for history in histories]
    steps = runtime.stats.num_steps
    with pytest.raises((InvalidRequest, ContextTooLong, ValueError), match=text):
        await _drawn(lanes, guided(**sampling))
    assert runtime.stats.num_steps == steps
    for lane in lanes:
        assert not lane.is_busy
        lane.release()


@pytest.mark.real_model
async def test_guidance_on_the_real_model_is_what_fresh_computations_make_of_it(real_model_path: Path) -> None:
    config = EngineConfig(model=str(real_model_path), device="cpu", check_integrity=True, kv=KVConfig(num_pages=64))
    async with open_engine(build_loop(config)) as engine:
        runtime = Runtime(engine, TextModel.load(real_model_path))
        tokenizer = runtime.text.tokenizer
        histories = [
            tokenizer.encode(text, add_special=True) for text in ("The largest river of France is", "Continue.")
        ]
        lanes = [runtime.open_context(history) for history in histories]
        tokens = await _drawn(lanes, guided(max_tokens=12))
        assert tokens == await expected(runtime, histories, 1.5, 12)
        for lane in lanes:
            lane.release()
        await no_page_is_used(engine)
