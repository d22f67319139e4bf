"""Programs over a real engine: the tokens of plain completions, pages that are free again, the documented examples."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.sampling.params import SamplingParams
from engine.text.model import TextModel
from extensions.errors import ScriptLimitExceeded
from extensions.output import GenerateOptions
from tests.extensions.programs.examples import EXAMPLES
from tests.extensions.programs.stage import MESSAGES, Stage, main_of, until
from tests.tiny_models import write_tiny_model

NUM_PAGES = 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=NUM_PAGES)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest.fixture
async def real(engine: EngineConnection, directory: Path) -> AsyncIterator[Stage]:
    made = Stage(engine, TextModel.load(directory))
    yield made
    await made.aclose()


async def plain(stage: Stage, **fields: Any) -> tuple[str, list[int]]:
    """The answer to the chat without a program, what is left open as the model recommends."""
    defaults = stage.engine.info.defaults
    recommended = {"top_p": defaults.top_p, "top_k": defaults.top_k, "repetition_penalty": defaults.repetition_penalty}
    given = {name: value for name, value in recommended.items() if value is not None} | fields
    sampling = SamplingParams(**given)
    template = stage.text.chat_template
    assert template is not None
    ids = stage.text.tokenizer.encode(template.render(MESSAGES), add_special=False)
    texts: list[str] = []
    tokens: list[int] = []
    async with await stage.runtime.context(ids).generate(GenerateOptions(sampling=sampling)) as generation:
        async for step in generation:
            texts.append(step.text)
            tokens += step.token_ids
    return "".join(texts), tokens


async def test_a_generation_gives_the_tokens_of_a_plain_completion(real: Stage) -> None:
    expected = await plain(real, max_tokens=10, temperature=0.9, seed=5, top_p=0.9)
    seen = await real.value(
        """
        ctx = await lm.context(request.messages)
        answer = await ctx.generate(max_tokens=10, temperature=0.9, seed=5, top_p=0.9)
        return [answer.text, answer.tokens]
        """
    )
    assert tuple(seen) == expected


@pytest.mark.parametrize(
    "go_on", ["await ctx.generate(max_tokens=4)", "gen = await ctx.generation(max_tokens=4)\n        await gen.step(4)"]
)
async def test_what_is_appended_behind_an_answer_is_computed_and_counted_so(real: Stage, go_on: str) -> None:
    outcome = await real.run(
        main_of(
            f"""
        ctx = await lm.context(list(range(100, 132)))
        await ctx.generate(max_tokens=4, temperature=0.0, template_stops=False)
        await ctx.append(list(range(50, 90)))
        {go_on}
        """
        )
    )
    assert (outcome.usage.num_prompt_tokens, outcome.usage.num_cached_tokens) == (72, 0)


async def test_forked_and_rewound_generations_give_those_tokens_too(real: Stage) -> None:
    expected = [(await plain(real, max_tokens=6, temperature=1.0, seed=seed))[1] for seed in range(3)]
    seen = await real.value(
        """
        ctx = await lm.context(request.messages)
        start = await ctx.mark()
        forks = await ctx.fork(3)
        answers = await asyncio.gather(
            *[fork.generate(max_tokens=6, temperature=1.0, seed=seed) for seed, fork in enumerate(forks)])
        rewound = []
        for seed in range(3):
            rewound.append((await ctx.generate(max_tokens=6, temperature=1.0, seed=seed)).tokens)
            await ctx.rewind(start)
        return [[answer.tokens for answer in answers], rewound]
        """
    )
    assert seen == [expected, expected]


async def test_a_guess_is_checked_in_one_pass(real: Stage) -> None:
    greedy, scored = await real.value(
        """
        ctx = await lm.context(request.messages)
        start = await ctx.mark()
        greedy = (await ctx.generate(max_tokens=6, temperature=0.0, template_stops=False)).tokens
        await ctx.rewind(start)
        scored = (await ctx.score([greedy], top=1))[0]
        return [greedy, [[one.token, one.top[0].token, one.text == one.top[0].text] for one in scored]]
        """
    )
    assert scored == [[token, token, True] for token in greedy]


async def test_token_ids_become_a_part_of_the_answer_once_it_is_open(real: Stage) -> None:
    expected = (await plain(real, max_tokens=6, temperature=0.0))[1]
    seen = await real.value(
        """
        ctx = await lm.context(request.messages)
        await ctx.append("")
        out = []
        for _ in range(6):
            out.append((await ctx.next(top=1)).candidates[0].token)
            await ctx.append(out[-1:])
        return out
        """
    )
    assert seen == expected


async def test_pages_are_free_once_a_run_has_ended_however_it_ends(real: Stage) -> None:
    await real.run(main_of("ctx = await lm.context('hello ' * 40)\nawait (await ctx.fork()).generate(max_tokens=9)"))
    with pytest.raises(ScriptLimitExceeded):
        await real.run(
            main_of("ctx = await lm.context('hello ' * 40)\nawait asyncio.gather(ctx.generate(template_stops=False))"),
            limits={"decode_tokens": 20},
        )
    run = await real.start(
        main_of("ctx = await lm.context('hello ' * 40)\nawait ctx.generate(template_stops=False, emit=True)")
    )
    async for _ in run:
        break
    await run.aclose()
    await until(lambda: real.engine.stats.num_running == 0 and real.engine.stats.num_used_pages == 0)


async def test_forks_compute_their_prompt_once(real: Stage) -> None:
    outcome = await real.run(
        main_of("""
            ctx = await lm.context("hello " * 30)
            await ctx.prefill()
            forks = await ctx.fork(8)
            await asyncio.gather(*[fork.generate(max_tokens=1) for fork in forks])
            info = await forks[0].info()
            return [info.shared_bytes > 0, info.bytes > 0, info.pending <= 1, info.recomputable]
        """)
    )
    assert outcome.result == [True, True, True, True]
    assert outcome.usage.num_prompt_tokens == len(real.text.tokenizer.encode("hello " * 30, add_special=True))


async def test_what_is_dropped_frees_its_pages_and_what_is_hidden_stays(real: Stage) -> None:
    seen = await real.value(
        """
        ctx = await lm.context("hello " * 40)
        await ctx.prefill()
        whole = await ctx.info()
        hidden = await ctx.fork()
        await hidden.hide(16, 64)
        await hidden.generate(max_tokens=3, seed=1, template_stops=False)
        await ctx.drop(16, 64)
        await ctx.generate(max_tokens=3, seed=1, template_stops=False)
        await hidden.release()
        left = await ctx.info()
        return [whole.bytes > left.bytes, ctx.length == whole.length + 3, whole.recomputable]
        """
    )
    assert seen == [True, True, True]


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_documented_example_runs(real: Stage, name: str) -> None:
    example = EXAMPLES[name]
    shorter = re.sub(r"max_tokens=\d+", "max_tokens=10", example.source)
    outcome = await real.run(shorter, args=example.args)
    assert outcome.content is not None or outcome.result is not None


@pytest.mark.real_model
@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_documented_example_runs_on_the_real_model(real_model_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    config = EngineConfig(model=str(real_model_path), device="cpu", kv=KVConfig(num_pages=512))
    async with open_engine(build_loop(config)) as engine:
        stage = Stage(engine, TextModel.load(real_model_path))
        messages = [{"role": "user", "content": "Name a river in France, and say why."}]
        outcome = await stage.run(example.source, args=example.args, messages=messages)
        await stage.aclose()
    assert outcome.content is not None
    assert outcome.content.strip()


async def test_a_constraint_that_cannot_be_compiled_is_refused_where_it_is_made(real: Stage) -> None:
    found = await real.value(
        """
        async def code_of(making):
            try:
                await making
            except ValueError as error:
                return str(error).split(":")[0]

        return [
            await code_of(lm.constraint({"regex": "("})),
            await code_of(lm.constraint({"grammar": "start: missing"})),
            await code_of(lm.constraint({"json_schema": {"type": "no type"}})),
        ]
        """
    )
    assert found == ["constraint_invalid"] * 3


async def test_calls_that_a_constraint_forces_are_read_back_as_they_are_written(real: Stage) -> None:
    found = await real.value(
        """
        city = {"enum": ["Oslo", "Rome", '"', "}"]}
        parameters = {"type": "object", "properties": {"city": city, "sure": {"type": "boolean"}},
                      "required": ["city", "sure"], "additionalProperties": False}
        tools = await lm.constraint({"tools": [{"name": "weather", "parameters": parameters}, {"name": "time"}]})
        prompt = await lm.context(request.messages)
        branches = await prompt.fork(6)
        plans = await asyncio.gather(
            *[one.generate(max_tokens=60, constrain=tools, seed=i) for i, one in enumerate(branches)]
        )
        return [[plan.text, plan.finish_reason, plan.tool_calls] for plan in plans]
        """
    )
    whole = [(json.loads(text), calls) for text, reason, calls in found if reason == "stop"]
    assert whole
    for said, calls in whole:
        written = said if isinstance(said, list) else [said]
        assert [{key: call[key] for key in ("name", "arguments")} for call in calls] == written
