"""Adapters at single sites beside the native step: rows by torch, behind a history that it has computed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_loop
from engine.config import (
    AdapterSource,
    AttentionScores,
    EngineConfig,
    KVConfig,
    SchedulingConfig,
    WeightFormat,
)
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


def is_near(one: list[list[float]], other: list[list[float]], tolerance: float = TOLERANCE) -> bool:
    return all(row == pytest.approx(expected, abs=tolerance) for row, expected in zip(one, other, strict=True))


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


@pytest.fixture
async def bare(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """Over an engine without adapters, whose weights torch has not loaded."""
    model = write_tiny_model(tmp_path / "tiny", "llama")
    told: tuple[WeightFormat, AttentionScores] = getattr(request, "param", ("bfloat16", "auto"))
    weights, scores = told
    config = EngineConfig(
        model=str(model),
        device="cpu",
        weights=weights,
        step="native",
        attention_scores=scores,
        check_integrity=True,
        kv=KVConfig(num_pages=64),
    )
    async with open_engine(build_loop(config)) as engine:
        made = Stage(engine, TextModel.load(model))
        yield made
        await made.aclose()


LATE = """
KEEP, HALF = "def adapter(y):\\n    return y\\n", "def adapter(y):\\n    return 0.5 * y\\n"
ctx = await lm.context(list(range(30, 75)))
calls = [looked(lm, ctx, changes) for changes in ([], [("q", KEEP)], [("down", HALF)], [("", KEEP)][:0])]
plain, same, changed, beside = await asyncio.gather(*calls)
"""
"""Several that need the weights at once, and some that do not."""


@pytest.mark.parametrize("bare", [("bfloat16", "auto"), ("int8", "on")], indirect=True, ids=["bfloat16", "int8"])
async def test_weights_are_loaded_when_the_first_expression_comes(bare: Stage) -> None:
    plain, same, changed, beside, later = await value(
        bare,
        LATE + """return [plain, same, changed, beside, await looked(lm, ctx, [("down", HALF)])]""",
    )
    # Torch's weights are not rounded to int8.
    assert is_near(same, plain, 0.3 if "int8" in bare.engine.info.dtype else TOLERANCE)
    assert not is_near(changed, plain, 0.3)
    assert beside == plain
    assert later == changed


async def test_lanes_wait_for_the_weights_and_for_their_constraint(bare: Stage) -> None:
    found = await value(
        bare,
        """
fwd = lm.forward()
await fwd.embed_next([await lm.context(list(range(30, 75)))])
await fwd.adapter("down", "def adapter(y):\\n    return 0.5 * y\\n")
await fwd.epilogue("def sample(logits):\\n    return argmax(logits)\\n")
tokens = await lm.pipeline().run_ahead(fwd, budget=8, stop="template", constrain={"regex": "(ab){2}"})
return [await lm.decode(tokens)]
""",
    )
    assert found == ["abab"]


async def test_attention_and_adapters_share_the_weights_that_are_loaded(bare: Stage) -> None:
    plain, same = await value(
        bare,
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
return [await attended([]), await attended([("q", "def adapter(y):\\n    return y\\n")])]
""",
    )
    assert sum(plain) == pytest.approx(1.0, abs=0.01)
    assert same == pytest.approx(plain, abs=0.01)


async def test_an_expression_that_cannot_be_has_nothing_loaded(bare: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    monkeypatch.setattr("engine.build.load_model", lambda *args, **more: loads.append(args))
    said = await value(
        bare,
        """
ctx = await lm.context(list(range(30, 75)))
fwd = lm.forward()
await fwd.embed([20, 21, 22])
await fwd.state([ctx], {"fold": "none"})
await fwd.adapter("q", "def adapter(y):\\n    return y\\n", layers=[99])
try:
    await fwd.run()
except ValueError as error:
    return [str(error)]
""",
    )
    assert "layers are numbered from 0" in said[0]
    assert loads == []


async def test_weights_that_are_gone_are_told_and_tried_again(bare: Stage, tmp_path: Path) -> None:
    (tmp_path / "tiny").rename(tmp_path / "away")
    body = """
ctx = await lm.context(list(range(30, 75)))
try:
    return await looked(lm, ctx, [("down", "def adapter(y):\\n    return y\\n")])
except ValueError as error:
    return [str(error)]
"""
    assert "the weights cannot be loaded for it" in (await value(bare, body))[0]
    (tmp_path / "away").rename(tmp_path / "tiny")
    assert len(await value(bare, body)) == 3


@pytest.mark.parametrize("bare", [("bfloat16", "off")], indirect=True)
async def test_where_weights_may_not_be_held_twice_there_are_no_sites(bare: Stage) -> None:
    assert bare.engine.info.sites == {}
    said = await value(
        bare,
        """
try:
    fwd = lm.forward()
    await fwd.embed([20, 21, 22])
    await fwd.adapter("q", "def adapter(y):\\n    return y\\n")
except RuntimeError as error:
    return [str(error), "site_adapters" in lm.model.capabilities]
""",
    )
    assert said[0].startswith("capability_missing: the steps of this server have no adapters")
    assert said[1] is False
