"""Adapters at single sites beside the native step: rows by torch, behind a history that it has computed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_loop
from engine.config import AdapterSource, EngineConfig, KVConfig, SchedulingConfig
from engine.engine import open_engine
from engine.native.library import native_status
from engine.text.model import TextModel
from tests.extensions.programs.stage import Stage, main_of
from tests.extensions.programs.test_pass_adapters import HEAD
from tests.tiny_adapters import write_tiny_adapter
from tests.tiny_models import write_tiny_model

pytestmark = pytest.mark.skipif(not native_status().available, reason="no native step here")

TOLERANCE = 0.1
"""Of log-probabilities in bfloat16 by torch and by the native step."""


@pytest.fixture
async def stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    model = write_tiny_model(tmp_path / "tiny", "llama")
    write_tiny_adapter(tmp_path / "poet", model, "lora", seed=1)
    config = EngineConfig(
        model=str(model),
        device="cpu",
        weights="bfloat16",
        step="native",
        check_integrity=True,
        kv=KVConfig(num_pages=64),
        adapters=(AdapterSource(name="poet", path=str(tmp_path / "poet")),),
        scheduling=SchedulingConfig(max_batch_tokens=getattr(request, "param", None)),
    )
    async with open_engine(build_loop(config)) as engine:
        made = Stage(engine, TextModel.load(model))
        yield made
        await made.aclose()


async def value(stage: Stage, body: str) -> Any:
    """What a program of these lines returns."""
    return (await stage.run(HEAD + main_of(body))).result


def is_near(one: list[list[float]], other: list[list[float]]) -> bool:
    return all(row == pytest.approx(expected, abs=TOLERANCE) for row, expected in zip(one, other, strict=True))


@pytest.mark.parametrize("stage", [None, 8], indirect=True, ids=["at once", "in pieces"])
async def test_rows_see_the_history_that_the_native_step_has_computed(stage: Stage) -> None:
    plain, model, same, changed, after = await value(
        stage,
        """
ctx = await lm.context(list(range(30, 75)))
keep = "def adapter(y):\\n    return y\\n"
tokens = tuple(range(80, 100))
return [await looked(lm, ctx, [], tokens=tokens), await looked(lm, ctx, [("q", "")], tokens=tokens),
        await looked(lm, ctx, [(site, keep) for site in SITES], tokens=tokens),
        await looked(lm, ctx, [(site, "poet") for site in SITES], tokens=tokens),
        await looked(lm, ctx, [], tokens=tokens)]
""",
    )
    assert is_near(model, plain)
    assert is_near(same, plain)
    assert not is_near(changed, plain)
    assert after == plain  # what rows wrote is nobody's history


async def test_rows_behind_the_model_and_behind_an_adapter_share_a_step(stage: Stage) -> None:
    alone, together = await value(
        stage,
        """
async def all_of(contexts, at_once):
    calls = [looked(lm, ctx, changes) for ctx, changes in contexts]
    return await asyncio.gather(*calls) if at_once else [await call for call in calls]

plain, poet = await lm.context(list(range(30, 75))), await lm.context(list(range(30, 75)), adapter="poet")
contexts = [(plain, []), (plain, [("v", "poet")]), (poet, []), (poet, [("v", "")])]
return [await all_of(contexts, False), await all_of(contexts, True)]
""",
    )
    assert all(is_near(one, other) for one, other in zip(alone, together, strict=True))
    assert not is_near(alone[0], alone[1])
    assert not is_near(alone[2], alone[3])


async def test_what_rows_with_an_adapter_attend_to_is_read_where_it_lies(stage: Stage) -> None:
    plain, same = await value(
        stage,
        """
async def attended(changes):
    fwd = lm.forward()
    await fwd.embed([20, 21, 22])
    await fwd.state([ctx], {"fold": "none"})
    for change in changes:
        await fwd.adapter(*change)
    await fwd.readout([2])
    await fwd.on_attention()
    return (await fwd.run()).attention[0].scores

ctx = await lm.context(list(range(30, 75)))
return [await attended([]), await attended([("q", "")])]
""",
    )
    assert sum(plain) == pytest.approx(1.0, abs=0.01)
    assert same == pytest.approx(plain, abs=0.01)


@pytest.mark.parametrize("stage", [None, 8], indirect=True, ids=["at once", "in pieces"])
async def test_lanes_go_on_with_an_adapter_beside_the_native_step(stage: Stage) -> None:
    noted, likeliest, plain = await value(
        stage,
        """
PROGRAM = "def sample(logits):\\n    probe.best = max(log_softmax(logits))\\n    return argmax(logits)\\n"

async def ahead(ctx, changes):
    fwd = lm.forward()
    await fwd.embed_next([ctx])
    for change in changes:
        await fwd.adapter(*change)
    await fwd.epilogue(PROGRAM)
    pipe = lm.pipeline()
    return await pipe.run_ahead(fwd, budget=12, stop=None), pipe.probes["best"]

changes = [(site, "poet") for site in SITES]
ctx = await lm.context(list(range(30, 75)))
tokens, noted = await ahead(await ctx.fork(), changes)
plain = (await ahead(await ctx.fork(), []))[1]
await ctx.truncate(ctx.length - 1)
likeliest = [row[0] for row in await looked(lm, ctx, changes, tokens=(74, *tokens[:-1]))]
return [noted, likeliest, plain]
""",
    )
    assert noted == pytest.approx(likeliest, abs=TOLERANCE)
    assert noted != pytest.approx(plain, abs=TOLERANCE)
