"""Adapters at single sites of passes that run ahead: of the tokens that lanes go on with, over a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build import build_loop
from engine.config import AdapterSource, EngineConfig, KVConfig, SchedulingConfig
from engine.engine import open_engine
from engine.text.model import TextModel
from tests.extensions.programs.stage import Stage, until
from tests.extensions.programs.test_pass_adapters import PIECES, value
from tests.extensions.programs.test_pass_adapters import directory as directory
from tests.extensions.programs.test_pass_adapters import engine as engine
from tests.extensions.programs.test_pass_adapters import stage as stage

LINES = """
BEST = "def sample(logits):\\n    return argmax(logits)\\n"
CHANGES = [("k", "poet"), ("v", "quiet"), ("o", "def adapter(y):\\n    return y * 1.5\\n")]

async def ahead(lm, contexts, changes, budget=8, program=BEST, **options):
    fwd = lm.forward()
    await fwd.embed_next(contexts)
    for change, *lanes in changes:
        await fwd.adapter(*change, lanes=lanes or None)
    await fwd.epilogue(program)
    return await lm.pipeline().run_ahead(fwd, budget=budget, stop=None, **options)

async def expected(lm, ctx, tokens, changes):
    # What is likeliest behind the last token of a context and each of those that follow it.
    past = await ctx.fork()
    last = (await past.tokens())[-1]
    await past.truncate(past.length - 1)
    fwd = lm.forward()
    await fwd.embed([last, *tokens[:-1]])
    await fwd.state([past])
    for change in changes:
        await fwd.adapter(*change)
    await fwd.readout(list(range(len(tokens))), top=1)
    return [row.candidates[0].token for row in (await fwd.run()).rows]
"""


async def made(stage: Stage, body: str) -> list[object]:
    """What a program of these lines returns."""
    found = await value(stage, LINES.strip("\n") + "\n" + body.strip("\n"))
    assert isinstance(found, list)
    return found


@PIECES
async def test_tokens_drawn_ahead_are_those_of_rows_with_the_same_adapters(stage: Stage) -> None:
    drawn, wanted, plain, gained, again = await made(
        stage,
        """
ctx = await lm.context("a b c d e f")
plain = await ahead(lm, [await ctx.fork()], [])
wanted = await ctx.fork()
before = ctx.length
drawn = await ahead(lm, [ctx], [(change,) for change in CHANGES])
again = await ahead(lm, [await wanted.fork()], [(change,) for change in CHANGES])
return [drawn, await expected(lm, wanted, drawn, CHANGES), plain, await ctx.tokens(before), again]
""",
    )
    assert drawn == wanted
    assert drawn != plain
    assert drawn == gained
    assert drawn == again


@PIECES
async def test_what_was_drawn_with_an_adapter_is_history_like_any_other(stage: Stage) -> None:
    after, fresh, twin = await made(
        stage,
        """
ctx = await lm.context("a b c d")
await ctx.prefill()
tokens = await ahead(lm, [ctx], [(change,) for change in CHANGES], budget=20)
after = (await ctx.next(top=3)).entropy
fresh = await lm.context("a b c d")
await fresh.append(tokens)
alone = (await fresh.next(top=3)).entropy
twin = await lm.context(await ctx.tokens())
return [after, alone, (await twin.next(top=3)).entropy]
""",
    )
    assert after == pytest.approx(fresh, abs=1e-5)
    assert after == pytest.approx(twin, abs=1e-5)


async def test_lanes_that_go_on_may_differ(stage: Stage) -> None:
    drawn, best, gained = await made(
        stage,
        """
LESS = "def sample(lanes):\\n    return argmax(lanes[0].logits - 0.5 * lanes[1].logits)\\n"
one, two = await lm.context("a b c d"), await lm.context("e f g h", adapter="poet")
starts = [one.length, two.length]
copies = [await one.fork(), await two.fork()]
drawn = await ahead(lm, [one, two], [(("o", "poet"), 0), (("v", ""), 1)], budget=5, program=LESS)
rows = []
for ctx, change in zip(copies, (("o", "poet"), ("v", ""))):
    last = (await ctx.tokens())[-1]
    await ctx.truncate(ctx.length - 1)
    fwd = lm.forward()
    await fwd.embed([last, *drawn[:-1]])
    await fwd.state([ctx])
    await fwd.adapter(*change)
    await fwd.readout(list(range(len(drawn))), top="all")
    rows.append([row.logprobs for row in (await fwd.run()).rows])
best = [max(range(len(a)), key=lambda at: a[at] - 0.5 * b[at]) for a, b in zip(*rows)]
return [drawn, best, [await one.tokens(starts[0]), await two.tokens(starts[1])]]
""",
    )
    assert drawn == best
    assert gained == [drawn, drawn]


async def test_a_context_with_dropped_tokens_goes_on_with_an_adapter(stage: Stage) -> None:
    plain, same, changed, after, fresh = await made(
        stage,
        """
async def dropped():
    ctx = await lm.context()
    await ctx.append([30 + at % 40 for at in range(70)])
    await ctx.prefill()
    await ctx.hide(3, 9)
    await ctx.drop(16, 48)
    return ctx

keep = ("q", "def adapter(y):\\n    return y\\n")
plain = await ahead(lm, [await dropped()], [])
same = await ahead(lm, [await dropped()], [(keep,)])
ctx = await dropped()
changed = await ahead(lm, [ctx], [(change,) for change in CHANGES])
after = (await ctx.next(top=3)).entropy
other = await dropped()
await other.append(changed)
return [plain, same, changed, after, (await other.next(top=3)).entropy]
""",
    )
    assert plain == same
    assert plain != changed
    assert after == pytest.approx(fresh, abs=1e-5)


async def test_constraints_seeds_and_single_passes_go_with_adapters(stage: Stage) -> None:
    text, first, again, single, scores = await made(
        stage,
        """
DRAW = "def sample(lanes, key):\\n    probe.sure = max(softmax(lanes[0].logits))\\n" \\
       "    return gumbel_argmax(lanes[0].logits, key)\\n"
ctx = await lm.context("a b c d")
changes = [(change,) for change in CHANGES]
held = await ctx.fork()
await ahead(lm, [held], changes, budget=20, program=DRAW, constrain={"choice": ["a b", "c d"]})
text = await lm.decode(await held.tokens(ctx.length))
first = await ahead(lm, [await ctx.fork()], changes, program=DRAW, seed=5)
again = await ahead(lm, [await ctx.fork()], changes, program=DRAW, seed=5)
fwd = lm.forward()
await fwd.embed_next([ctx])
await fwd.adapter("k", "poet")
await fwd.epilogue(DRAW)
await fwd.on_attention()
made = await fwd.run(seed=5)
return [text, first, again, [made.token, len(made.probes)], made.attention[0].scores]
""",
    )
    assert text in ("a b", "c d")
    assert first == again
    assert isinstance(single, list)
    assert single[1] == 1
    assert isinstance(scores, list)
    assert sum(scores) == pytest.approx(1.0, abs=1e-3)


async def test_the_same_tokens_come_when_memory_is_short(directory: Path) -> None:
    adapters = tuple(AdapterSource(name=name, path=str(directory.parent / name)) for name in ("poet", "quiet"))
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=20),
        scheduling=SchedulingConfig(max_batch_tokens=24),
        adapters=adapters,
    )
    async with open_engine(build_loop(config)) as engine:
        stage = Stage(engine, TextModel.load(directory))
        alone, beside = await made(
            stage,
            """
tokens = [30 + at % 40 for at in range(60)]

async def draws():
    context = await lm.context()
    await context.append(tokens)
    found = await ahead(lm, [context], [(change,) for change in CHANGES], budget=50)
    await context.release()
    return found

async def talks(seed):
    context = await lm.context()
    await context.append([100 + seed + at % 50 for at in range(60)])
    await context.generate(max_tokens=60, seed=seed, template_stops=False)
    await context.release()

alone = await draws()
beside, *_ = await asyncio.gather(draws(), *[talks(seed) for seed in range(4)])
return [alone, beside]
""",
        )
        await until(lambda: engine.stats.num_preemptions > 0)
        await stage.aclose()
    assert alone == beside
