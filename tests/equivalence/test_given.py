"""Generations that were cut off, on a real engine: they go on as if they never had been, whatever is asked of them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.build import build_loop
from engine.client import EngineClient
from engine.contexts.commands import AppendTokens, OpenContext, ReleaseContexts
from engine.engine import open_engine
from engine.errors import InvalidRequest
from engine.request import ConstraintKind, ConstraintSpec, DrafterSpec, GenerateRequest, ProgramSpec
from engine.sampling.params import SamplingParams
from tests.equivalence.harness import STEPS
from tests.equivalence.test_live_contexts import SAMPLINGS, engine_config, no_page_is_used
from tests.tiny_models import write_tiny_model

PROMPT = [5, 6, 7, 8, 9]
DRAWS = "def sample(logits, key):\n    return argmax(logits + gumbel(key))\n"
MORE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"temperature": 0.9, "seed": 7, "min_tokens": 9}, {}),
    ({"temperature": 0.9, "seed": 8}, {"constraint": ConstraintSpec(kind=ConstraintKind.REGEX, source="[a-f]{8,20}x")}),
    ({"temperature": 0.0}, {"drafter": DrafterSpec(min_match=1)}),
    ({"seed": 9}, {"program": ProgramSpec(source=DRAWS)}),
)
CASES = (*((sampling, {}) for sampling in SAMPLINGS), *MORE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(params=STEPS)
async def engine(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[EngineClient]:
    """A real engine in a thread of this process."""
    async with open_engine(build_loop(engine_config(model, request.param))) as engine:
        yield engine
        await no_page_is_used(engine)


async def drawn(engine: EngineClient, given: list[int], request: GenerateRequest) -> list[int]:
    """What follows the prompt and some tokens that were drawn before."""
    context_id = uuid.uuid4().hex
    engine.tell(OpenContext(context_id, "", ""))
    engine.tell(AppendTokens(context_id, [*PROMPT, *given]))
    named = {"request_id": uuid.uuid4().hex, "context_id": context_id, "num_given": len(given)}
    stream = await engine.submit(msgspec.structs.replace(request, **named))
    try:
        found = []
        async for event in stream:
            assert event.error is None
            found += event.token_ids
        return found
    finally:
        await stream.aclose()
        engine.tell(ReleaseContexts([context_id]))


@pytest.mark.parametrize(("sampling", "more"), CASES)
async def test_what_was_cut_off_goes_on_as_if_it_never_had_been(
    engine: EngineClient, sampling: dict[str, Any], more: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=14, ignore_eos=True, **sampling)
    request = GenerateRequest(request_id="", prompt_ids=[], sampling=params, **more)
    whole = await drawn(engine, [], request)
    assert len(whole) > 6
    for num_given in (1, 2, 5, len(whole) - 1):
        assert await drawn(engine, whole[:num_given], request) == whole[num_given:], num_given


@pytest.mark.parametrize("num_given", [-1, 5, 14])
async def test_more_than_there_can_be_is_refused(engine: EngineClient, num_given: int) -> None:
    engine.tell(OpenContext("c", "", ""))
    engine.tell(AppendTokens("c", PROMPT))
    request = GenerateRequest(
        request_id="r", prompt_ids=[], context_id="c", num_given=num_given, sampling=SamplingParams(max_tokens=14)
    )
    with pytest.raises(InvalidRequest, match="num_given"):
        await engine.submit(request)
    engine.tell(ReleaseContexts(["c"]))
