"""Scripts made at random, with steps known ahead and without: what they see, use and leave behind is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from engine.scheduling import stepping
from extensions.errors import ScriptError, ScriptLimitExceeded
from extensions.programs.request import LogWritten, TextEmitted
from extensions.programs.run import ProgramRun
from extensions.sandbox import script
from extensions.sandbox.guessing import GUESSING
from extensions.sandbox.stepping import STEPPING
from tests.extensions.programs.random_scripts import random_script
from tests.extensions.programs.stage import Stage, real_stage, until
from tests.extensions.programs.telling_engine import TellingEngine
from tests.fakes import says, text_model
from tests.tiny_models import write_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOON = {"CONFIDENT": 2, "BURST": 3, "SURE": 8, "MISTRUST": -1}
"""The engine is soon sure of the script, for its generations are short."""
NEVER = {"TRUSTED": 10**9}


@dataclasses.dataclass
class Pair:
    """Two engines of the same model, which are asked the same."""

    ahead: Stage
    naive: Stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")
    async with real_stage(model) as ahead, real_stage(model) as naive:
        yield Pair(ahead, naive)


async def seen(stage: Stage, source: str, **options: Any) -> dict[str, Any]:
    """All that comes of a script, but for how long it took."""
    found: dict[str, Any] = {}
    run: ProgramRun = await stage.start(source, **options)
    async with run:
        emitted, printed = "", ""
        try:
            async for event in run:
                match event:
                    case LogWritten(text):
                        printed += text
                    case TextEmitted(text):
                        emitted += text
            outcome = run.outcome
            found |= {"result": outcome.result, "content": outcome.content, "finish": outcome.finish_reason}
            found |= {"path": outcome.exec_path, "reason": outcome.exec_reason}
        except ScriptError as error:
            found |= {"error": str(error), "code": error.code, "frames": error.frames}
        except ScriptLimitExceeded as error:
            found |= {"error": str(error)}
    found |= {"emitted": emitted, "printed": printed}
    usage = dataclasses.asdict(run.usage)
    found["usage"] = {name: usage[name] for name in usage if name not in ("wall_s", "first_call_s", "kv_kib_ms")}
    stage.check_rest()
    assert run.num_contexts == 0
    await until(lambda: stage.engine.stats.num_used_pages == 0)
    return found


def use(monkeypatch: pytest.MonkeyPatch, *, is_ahead: bool, trust: Mapping[str, int]) -> None:
    """From now on the sandbox keeps known steps or does not, and engines have so much trust."""
    monkeypatch.undo()
    monkeypatch.setattr(script, "STEPPING", STEPPING if is_ahead else GUESSING)
    for name, value in trust.items():
        monkeypatch.setattr(stepping, name, value)


@pytest.mark.parametrize("seed", range(30))
async def test_a_random_script_comes_to_the_same_on_an_engine(
    pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random_script(seed)
    use(monkeypatch, is_ahead=True, trust=SOON if seed % 4 else {})
    ahead = await seen(pair.ahead, source)
    use(monkeypatch, is_ahead=False, trust=NEVER)
    assert ahead == await seen(pair.naive, source)


@pytest.mark.parametrize("seed", range(100, 140))
async def test_a_random_script_comes_to_the_same_whatever_it_is_told_ahead(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, source = text_model(), random_script(seed)
    found = []
    for num_told in (5, 2, 1):
        use(monkeypatch, is_ahead=num_told > 1, trust={})
        engine = TellingEngine(text, says(text, "the Loire, I think; but there are many others, e.g. the Rhone."))
        engine.num_told = num_told
        stage = Stage(engine, text)
        found.append(await seen(stage, source))
        await stage.aclose()
    assert found[0] == found[1] == found[2]
