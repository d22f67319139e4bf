"""Device programs in a real small engine: alone, together, preempted, constrained."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from engine.build import build_loop
from engine.client import EngineClient
from engine.config import EngineConfig, KVConfig, SchedulingConfig
from engine.engine import open_engine
from engine.errors import InvalidRequest, ProgramFailed
from engine.reports import rebuild
from engine.request import ConstraintKind, ConstraintSpec, FinishReason, GenerateRequest, ProgramSpec
from engine.sampling.params import SamplingParams
from tests.tiny_models import write_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]

MIROSTAT = """
state.mu = 6.0

def sample(logits, key, tau):
    surprise = -log_softmax(logits) / log(2.0)
    token = gumbel_argmax(where((surprise < state.mu) | (rank(logits) == 0), logits, -1e30), key)
    state.mu = state.mu - 0.2 * (gather(surprise, token) - tau)
    return token
"""

NO_REPEATS = """
def sample(logits, history, counts):
    return argmax(scatter(logits - 100.0 * float(counts), history, -1e9))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("programs") / "tiny", "llama")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["native", "torch"])
async def engine(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[EngineClient]:
    weights = "bfloat16" if request.param == "native" else "float32"
    async with open_engine(build_loop(config(directory, step=request.param, weights=weights))) as engine:
        yield engine


def config(directory: Path, **fields: Any) -> EngineConfig:
    return EngineConfig(
        model=str(directory),
        device="cpu",
        check_integrity=True,
        **{
            "weights": "float32",
            "kv": KVConfig(num_pages=64),
            "scheduling": SchedulingConfig(max_num_seqs=8),
            **fields,
        },
    )


def request_of(
    source: str | None, *, seed: int = 0, parameters: dict[str, Any] | None = None, **fields: Any
) -> GenerateRequest:
    sampling = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "seed": seed, **fields.pop("sampling", {})})
    program = None if source is None else ProgramSpec(source=source, parameters=parameters or {})
    return GenerateRequest(request_id="", prompt_ids=PROMPT, sampling=sampling, program=program, **fields)


async def tokens_of(engine: EngineClient, request: GenerateRequest) -> list[int]:
    request = msgspec.structs.replace(request, request_id=uuid.uuid4().hex)
    found: list[int] = []
    async for event in await engine.submit(request):
        found += event.token_ids
        if event.finish_reason is FinishReason.ERROR:
            assert event.error is not None
            raise rebuild(event.error)
    return found


SAME = {
    "greedy": ("def sample(logits):\n    return argmax(logits)\n", {"temperature": 0.0}),
    "temperature": ("def sample(logits, key):\n    return gumbel_argmax(logits / 0.8, key)\n", {"temperature": 0.8}),
    "top_k": (
        "def sample(logits, key):\n    return gumbel_argmax(where(rank(logits) < 7, logits, -1e30), key)\n",
        {"top_k": 7},
    ),
    "penalties": (
        "def sample(logits):\n    return argmax(logits)\n",
        {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.5},
    ),
    "bias and bans": (
        "def sample(logits):\n    return argmax(logits)\n",
        {"temperature": 0.0, "logit_bias": {9: 4.0}, "bad_words": ((9, 9),)},
    ),
}


@pytest.mark.parametrize(("source", "sampling"), SAME.values(), ids=SAME.keys())
async def test_a_program_that_does_what_the_sampler_does_draws_the_same_tokens(
    engine: EngineClient, source: str, sampling: dict[str, Any]
) -> None:
    plain = await tokens_of(engine, request_of(None, seed=3, sampling=sampling))
    bare = {name: value for name, value in sampling.items() if name not in ("temperature", "top_k")}
    assert await tokens_of(engine, request_of(source, seed=3, sampling=bare)) == plain
    assert len(set(plain)) > 1


async def test_requests_with_programs_are_answered_as_if_alone(engine: EngineClient) -> None:
    wanted = [request_of(MIROSTAT, seed=seed, parameters={"tau": 2.0 + seed}) for seed in range(4)]
    wanted += [
        request_of(NO_REPEATS),
        request_of(None, seed=9),
        request_of(MIROSTAT, seed=5, parameters={"tau": 1.0}, n=2),
    ]
    alone = [await tokens_of(engine, one) for one in wanted[:-1]]
    together = await asyncio.gather(*[tokens_of(engine, one) for one in wanted])
    assert together[:-1] == alone
    assert len(set(alone[4])) == 24
    assert not set(alone[4]) & set(PROMPT)


async def test_preempted_programs_go_on_as_if_nothing_had_been(directory: Path) -> None:
    wanted = [
        request_of(MIROSTAT, seed=seed, parameters={"tau": 3.0}, sampling={"max_tokens": 60}) for seed in range(6)
    ]
    async with open_engine(build_loop(config(directory))) as engine:
        alone = [await tokens_of(engine, one) for one in wanted]
    small = config(directory, kv=KVConfig(num_pages=14))
    async with open_engine(build_loop(small)) as engine:
        together = await asyncio.gather(*[tokens_of(engine, one) for one in wanted])
        deadline_s = time.monotonic() + 60
        while sum(engine.stats.num_finished.values()) < len(wanted):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)  # numbers come about once a second
        assert engine.stats.num_preemptions > 0
    assert together == alone


async def test_a_constraint_holds_whatever_the_program_returns(engine: EngineClient) -> None:
    digits = ConstraintSpec(kind=ConstraintKind.REGEX, source="[0-9]{6}")
    sampling = {"max_tokens": 12, "ignore_eos": False}
    obeys = "def sample(logits, key):\n    return gumbel_argmax(logits, key)\n"
    plain = await tokens_of(engine, request_of(None, seed=4, constraint=digits, sampling=sampling))
    assert await tokens_of(engine, request_of(obeys, seed=4, constraint=digits, sampling=sampling)) == plain
    with pytest.raises(ProgramFailed):
        await tokens_of(engine, request_of("def sample():\n    return 0\n", constraint=digits, sampling=sampling))


@pytest.mark.parametrize("token", [-1, 10**6])
async def test_a_token_that_does_not_exist_ends_the_request_alone(engine: EngineClient, token: int) -> None:
    source = "def sample(prev, step, bad):\n    return where(step < 3, prev, bad)\n"
    bad = tokens_of(engine, request_of(source, parameters={"bad": token}))
    results = await asyncio.gather(bad, tokens_of(engine, request_of(None)), return_exceptions=True)
    assert isinstance(results[0], ProgramFailed)
    assert isinstance(results[1], list)
    assert len(results[1]) == 24


async def test_log_probabilities_are_the_models_own(engine: EngineClient) -> None:
    sampling = {"logprobs": 2, "max_tokens": 5}
    source = "def sample(logits):\n    v, i = topk(logits, 3)\n    return sum(where(rank(v) == 2, i, 0))\n"
    request = msgspec.structs.replace(request_of(source, sampling=sampling), request_id="reports")
    reports = [report async for event in await engine.submit(request) for report in event.logprobs]
    assert [report.rank for report in reports] == [3] * 5


REFUSED = {
    "no program": ("x = 1\n", {}),
    "a missing parameter": ("def sample(logits, t):\n    return argmax(logits * t)\n", {}),
    "an unknown parameter": ("def sample(logits):\n    return argmax(logits)\n", {"t": 1.0}),
    "a probe of every token": ("def sample(logits):\n    probe.x = logits\n    return argmax(logits)\n", {}),
    "two lanes": ("def sample(lanes):\n    return argmax(lanes[1].logits)\n", {}),
}


@pytest.mark.parametrize(("source", "parameters"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_no_program_is_refused(engine: EngineClient, source: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await tokens_of(engine, request_of(source, parameters=parameters))
    assert caught.value.param == "sampler"


async def test_logits_that_are_kept_as_they_are_stay_what_they_were(engine: EngineClient) -> None:
    kept = (
        "state.before = zeros(vocab)\n"
        "def sample(logits):\n"
        "    token = argmax(state.before)\n"
        "    state.before = {}\n"
        "    return token\n"
    )
    as_they_are = await tokens_of(engine, request_of(kept.format("logits")))
    copied = await tokens_of(engine, request_of(kept.format("logits + 0.0")))
    assert as_they_are == copied
