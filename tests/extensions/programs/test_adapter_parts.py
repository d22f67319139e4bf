"""What expressions take from loaded adapters: a DoRA written down is what the loaded one does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.build import build_loop
from engine.config import AdapterSource, EngineConfig, KVConfig
from engine.engine import open_engine
from engine.text.model import TextModel
from tests.extensions.programs.stage import Stage, main_of
from tests.extensions.programs.test_pass_adapters import HEAD
from tests.tiny_adapters import write_tiny_adapter
from tests.tiny_models import Family, write_tiny_model

DORA = '''
DORA = """
def adapter(x, y, a, b, gain, bias):
    return bias + gain * (y - bias + (x @ a) @ b)
"""
'''


@pytest.fixture(params=["llama", "qwen2"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    """Models without and with biases beside their matrices."""
    family: Family = request.param
    model = write_tiny_model(tmp_path / "tiny", family, seed=5)
    write_tiny_adapter(tmp_path / "poet", model, "dora", seed=1)
    write_tiny_adapter(tmp_path / "short", model, "dora", seed=2, modules=("q_proj",))
    write_tiny_adapter(tmp_path / "plain", model, "lora", seed=3)
    write_tiny_adapter(tmp_path / "quiet", model, "ia3", seed=4)
    config = EngineConfig(
        model=str(model),
        device="cpu",
        weights="float32",
        step="torch",
        check_integrity=True,
        kv=KVConfig(num_pages=64),
        adapters=tuple(
            AdapterSource(name=one, path=str(tmp_path / one)) for one in ("poet", "short", "plain", "quiet")
        ),
    )
    async with open_engine(build_loop(config)) as engine:
        made = Stage(engine, TextModel.load(model))
        yield made
        await made.aclose()


async def test_a_dora_as_an_expression_does_what_the_loaded_one_does(stage: Stage) -> None:
    body = """
dora = await lm.program(DORA, a="poet.a", b="poet.b", gain="poet.gain", bias="poet.bias")
ctx = await lm.context("a b c d")
found = [await looked(lm, ctx, [])]
for sites in [["q"], ["down"], SITES]:
    for adapter in ("poet", dora):
        found.append(await looked(lm, ctx, [(site, adapter) for site in sites]))
return found
"""
    plain, *pairs = (await stage.run(HEAD + DORA + main_of(body))).result
    for named, written in zip(pairs[::2], pairs[1::2], strict=True):
        assert all(one == pytest.approx(other, abs=1e-4) for one, other in zip(named, written, strict=True))
        assert any(one != pytest.approx(other, abs=1e-3) for one, other in zip(named, plain, strict=True))


REFUSED = {
    "a gain of a LoRA": ("q", "plain.gain", "parameter `gain` names no part of a loaded adapter"),
    "a gain of an IA3": ("q", "quiet.gain", "parameter `gain` names no part of a loaded adapter"),
    "a part that there is not": ("q", "poet.length", "there are: poet.a, poet.b, poet.gain, poet.bias, short.a"),
    "a site that it leaves alone": ("k", "short.gain", "the adapter that parts are taken from has none of them at k"),
}


@pytest.mark.parametrize(("site", "part", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_part_that_is_not_there_is_refused(stage: Stage, site: str, part: str, text: str) -> None:
    body = f"""
scale = await lm.program("def adapter(y, gain):\\n    return gain * y\\n", gain={part!r})
try:
    await looked(lm, await lm.context("a b c d"), [({site!r}, scale)])
except ValueError as error:
    return [str(error)]
"""
    (said,) = (await stage.run(HEAD + main_of(body))).result
    assert said.startswith("invalid_argument: ")
    assert text in said
