"""Adapters at single sites of the rows of a pass, loaded ones and expressions, over a real engine."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_loop
from engine.config import AdapterSource, EngineConfig, KVConfig, SchedulingConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from tests.extensions.programs.stage import Stage, main_of, until
from tests.tiny_adapters import write_tiny_adapter
from tests.tiny_models import write_tiny_model

HEAD = """
LORA = '''
def adapter(x, y, a, b, scale=1.0):
    return y + scale * (x @ a) @ b
'''
SITES = ["q", "k", "v", "o", "gate", "up", "down"]

async def looked(lm, ctx, changes, fold="none", tokens=(20, 21, 22)):
    fwd = lm.forward()
    await fwd.embed(list(tokens))
    await fwd.state([ctx], {"fold": fold})
    for change in changes:
        await fwd.adapter(*change)
    await fwd.readout(list(range(len(tokens))), top=5)
    return [[one.logprob for one in row.candidates] for row in (await fwd.run()).rows]
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    write_tiny_adapter(model.parent / "poet", model, "lora", seed=1)
    write_tiny_adapter(model.parent / "quiet", model, "ia3", seed=2, modules=("k_proj", "v_proj"))
    return model


@pytest.fixture
async def engine(directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[EngineConnection]:
    adapters = tuple(AdapterSource(name=name, path=str(directory.parent / name)) for name in ("poet", "quiet"))
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=64),
        adapters=adapters,
        scheduling=SchedulingConfig(max_batch_tokens=getattr(request, "param", None)),
    )
    loop = build_loop(config)
    async with open_engine(loop) as engine:
        yield engine
        await until(lambda: engine.stats.num_used_pages == 0)
        gc.collect()
        assert loop._adapters is not None
        await until(lambda: loop._adapters._shelf.num_made == 0)  # type: ignore[union-attr]


@pytest.fixture
async def stage(engine: EngineConnection, directory: Path) -> AsyncIterator[Stage]:
    made = Stage(engine, TextModel.load(directory))
    yield made
    await made.aclose()


async def value(stage: Stage, body: str) -> Any:
    """What a program of these lines returns."""
    return (await stage.run(HEAD + main_of(body))).result


def near(one: Any, other: Any) -> bool:
    """The same but for rounding."""
    return bool(all(first == pytest.approx(second, abs=1e-4) for first, second in zip(one, other, strict=True)))


PIECES = pytest.mark.parametrize("engine", [None, 8], indirect=True, ids=["at once", "in pieces"])
"""Steps of many tokens, and of so few that histories and rows are computed in pieces."""


@PIECES
async def test_an_expression_with_an_adapters_matrices_does_what_the_adapter_does(stage: Stage) -> None:
    own, written, named, plain, ruled = await value(
        stage,
        """
lora = await lm.program(LORA, a="poet.a", b="poet.b")
poet, ctx = await lm.context("a b c d", adapter="poet"), await lm.context("a b c d")
own = await looked(lm, poet, [])
written = await looked(lm, poet, [(site, lora) for site in SITES])
named = await looked(lm, ctx, [(site, "poet") for site in SITES])
ruled = await looked(lm, ctx, [(site, lora) for site in SITES])
return [own, written, named, await looked(lm, ctx, []), ruled]
""",
    )
    assert near(own, written)
    assert near(named, ruled)
    assert not near(named, plain)
    assert not near(named, own)  # what comes before the rows is the model's


async def test_one_site_is_changed_and_the_others_are_not(stage: Stage) -> None:
    plain, same, query, two, both = await value(
        stage,
        """
ctx = await lm.context("a b c d")
keep = "def adapter(y):\\n    return y\\n"
return [await looked(lm, ctx, []), await looked(lm, ctx, [(site, keep) for site in (*SITES, "gate_up")]),
        await looked(lm, ctx, [("q", "poet")]), await looked(lm, ctx, [("gate", "poet"), ("up", "poet")]),
        await looked(lm, ctx, [("gate_up", "poet")])]
""",
    )
    assert near(plain, same)
    assert not near(plain, query)
    assert not near(query, both)
    assert near(two, both)


async def test_what_a_pass_says_takes_the_place_of_what_its_context_has(stage: Stage) -> None:
    own, bare, scaled = await value(
        stage,
        """
poet = await lm.context("a b c d", adapter="poet")
double = await lm.program(LORA, a="poet.a", b="poet.b", scale=0.0)
return [await looked(lm, poet, []), await looked(lm, poet, [(site, "") for site in SITES]),
        await looked(lm, poet, [(site, double) for site in SITES])]
""",
    )
    assert not near(own, bare)
    assert near(bare, scaled)


async def test_matrices_and_vectors_may_be_brought_along(stage: Stage) -> None:
    first, again, layer, ia3 = await value(
        stage,
        """
inputs, outputs = lm.model.sites["v"]
a = [[0.1 * ((at * 7 + column) % 5 - 2) for column in range(2)] for at in range(inputs)]
b = [[0.1 * ((at * 3 + column) % 7 - 3) for column in range(outputs)] for at in range(2)]
ctx = await lm.context("a b c d")
whole = await lm.program(LORA, a=a, b=b, scale=2.0)
doubled = await lm.program(LORA, a=a, b=[[2.0 * one for one in row] for row in b])
gain = await lm.program("def adapter(y, gain):\\n    return y * gain\\n", gain=[1.5] * outputs)
fwd = lm.forward()
await fwd.embed([20, 21, 22])
await fwd.state([ctx])
await fwd.adapter("v", whole, layers=[0])
await fwd.readout([0, 1, 2], top=5)
layer = [[one.logprob for one in row.candidates] for row in (await fwd.run()).rows]
return [await looked(lm, ctx, [("v", whole)]), await looked(lm, ctx, [("v", doubled)]), layer,
        await looked(lm, ctx, [("v", gain)])]
""",
    )
    assert near(first, again)
    assert not near(first, layer)
    assert not near(first, ia3)


@PIECES
async def test_what_is_computed_with_an_adapter_is_nobodys_history(stage: Stage) -> None:
    before, after, folded, fresh, first, later = await value(
        stage,
        """
ctx = await lm.context("a b c d")
first = await looked(lm, ctx, [("k", "poet"), ("v", "quiet")])
before = (await ctx.next(top=3)).entropy
later = await looked(lm, ctx, [("k", "poet"), ("v", "quiet")])
after = (await ctx.next(top=3)).entropy
await looked(lm, ctx, [("k", "poet"), ("v", "poet")], fold="all")
folded = (await ctx.next(top=3)).entropy
other = await lm.context("a b c d")
await other.append([20, 21, 22])
return [before, after, folded, (await other.next(top=3)).entropy, first, later]
""",
    )
    assert before == pytest.approx(after, abs=1e-5)
    assert folded == pytest.approx(fresh, abs=1e-5)
    # The history before was not computed when the first pass began: it has the model's own KV all the same.
    assert near(first, later)


@PIECES
async def test_lanes_may_differ_and_a_program_reads_them(stage: Stage) -> None:
    token, best, kept = await value(
        stage,
        """
one, two = await lm.context("a b c d"), await lm.context("e f g h")
less = "def sample(lanes):\\n    return argmax(lanes[0].logits - 0.5 * lanes[1].logits)\\n"
fwd = lm.forward()
await fwd.embed([20, 21, 22], [0, 1, 3])
await fwd.state([one, two])
await fwd.adapter("o", "poet", lanes=[1])
await fwd.epilogue(await lm.program(less))
made = await fwd.run()
rows = []
for ctx, tokens, changes in ((one, [20], []), (two, [21, 22], [("o", "poet")])):
    fwd = lm.forward()
    await fwd.embed(tokens)
    await fwd.state([ctx])
    for change in changes:
        await fwd.adapter(*change)
    await fwd.readout([len(tokens) - 1], top="all")
    rows.append((await fwd.run()).rows[0].logprobs)
best = max(range(len(rows[0])), key=lambda at: rows[0][at] - 0.5 * rows[1][at])
return [made.token, best, made.folded]
""",
    )
    assert token == best
    assert kept == [0, 0]


async def test_what_is_no_number_harms_nobody(stage: Stage) -> None:
    plain, again, found = await value(
        stage,
        """
ctx = await lm.context("a b c d")
plain = await looked(lm, ctx, [])
broken = "def adapter(y):\\n    return y / 0.0 + log(y)\\n"
found = await looked(lm, ctx, [(site, broken) for site in SITES])
return [plain, await looked(lm, ctx, []), found]
""",
    )
    assert near(plain, again)
    assert all(abs(one) < 1e9 for row in found for one in row)


REFUSED: dict[str, tuple[str, str]] = {
    "no site": ('await fwd.adapter("head", "poet")', "invalid_argument: site must be one of q, k, v"),
    "no adapter": ('await fwd.adapter("q", "critic")', "capability_missing: this server has no adapter"),
    "nothing there": (
        'await fwd.adapter("q", "quiet")\nawait fwd.run()',
        "invalid_argument: the adapter 'quiet' changes",
    ),
    "something else": (
        'await fwd.adapter("q", "def sample(logits):\\\\n    return 1\\\\n")',
        "program_invalid: `sample` draws tokens",
    ),
    "another width": (
        'await fwd.adapter("down", "def adapter(x):\\\\n    return x\\\\n")',
        "program_invalid: line 2, column 12: the function returns what comes out",
    ),
    "a matrix that does not fit": (
        'await fwd.adapter("q", await lm.program(LORA, a=[[1.0]], b=[[1.0]]))',
        "program_invalid: line 3, column 25",
    ),
    "no part": (
        'await fwd.adapter("q", await lm.program(LORA, a="poet.c", b="poet.b"))',
        "invalid_argument: parameter `a` names no part",
    ),
    "parts of two projections": (
        'await fwd.adapter("gate_up", await lm.program(LORA, a="poet.a", b="poet.b"))\nawait fwd.run()',
        "invalid_argument: parts of an adapter belong to one projection",
    ),
    "an adapter without such parts": (
        'await fwd.adapter("k", await lm.program(LORA, a="quiet.a", b="quiet.b"))',
        "invalid_argument: parameter `a` names no part",
    ),
    "a missing parameter": (
        'await fwd.adapter("k", await lm.program(LORA, a="poet.a"))',
        "invalid_argument: the program needs a value for its parameter `b`",
    ),
    "a layer too far": (
        'await fwd.adapter("k", "poet", layers=[99])\nawait fwd.run()',
        "invalid_argument: layers are numbered",
    ),
    "a lane too far": ('await fwd.adapter("k", "poet", lanes=[1])', "invalid_argument: lanes are numbered"),
    "no lanes": ('await lm.forward().adapter("k", "poet")', "invalid_argument: adapter is of lanes"),
    "nothing there for a lane that goes on": (
        'await fwd.embed_next([ctx])\nawait fwd.adapter("q", "quiet")\n'
        'await fwd.epilogue("def sample(logits):\\n    return argmax(logits)\\n")\nawait fwd.run()',
        "invalid_argument: the adapter 'quiet' changes",
    ),
    "as a sampler": (
        "await ctx.generate(max_tokens=1, sampler=await lm.program(LORA, a=1.0, b=1.0))",
        "program_invalid: `adapter` changes what comes out of a site",
    ),
}


@pytest.mark.parametrize(("lines", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_does_not_fit_is_refused_and_nothing_is_left(stage: Stage, lines: str, text: str) -> None:
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
except (ValueError, RuntimeError) as failed:
    error = str(failed)
return [error, ctx.length - before]
""",
    )
    assert error.startswith(text)
    assert length == 0


async def test_rows_are_the_same_when_memory_is_short_and_they_are_computed_again(directory: Path) -> None:
    adapters = (AdapterSource(name="poet", path=str(directory.parent / "poet")),)
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
        alone, beside = await value(
            stage,
            """
tokens = [30 + at % 40 for at in range(90)]
changes = [("k", "poet"), ("v", "poet"), ("o", "def adapter(y):\\n    return y * 1.5\\n")]

async def looks(context):
    return [await looked(lm, context, changes, tokens=tuple(40 + at for at in range(30))) for _ in range(4)]

async def talks(seed):
    context = await lm.context()
    await context.append([100 + seed + at % 50 for at in range(60)])
    await context.generate(max_tokens=60, seed=seed, template_stops=False)
    await context.release()

ctx = await lm.context()
await ctx.append(tokens)
alone = (await looks(ctx))[0]
beside, *_ = await asyncio.gather(looks(ctx), *[talks(seed) for seed in range(4)])
return [alone, beside]
""",
        )
        await until(lambda: engine.stats.num_preemptions > 0)
        await stage.aclose()
    assert all(near(alone, one) for one in beside)
