"""Hundreds of random histories on the native step: every sequence yields what it yields alone, to the bit.

Requests join, end, are aborted or stopped, fork, score their prompts, share prefixes, wait for room and yield theirs,
in engines of several sizes that live through many such histories. At the end of each every page is free again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.loop import EngineLoop
from engine.request import GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams
from tests.equivalence.harness import Step, needs_native, open_loop, run_events
from tests.tiny_models import Family, write_tiny_model

pytestmark = needs_native

VOCAB = 400
NUM_KINDS = 48
HISTORIES = 60
"""For each engine; there are 16 of them."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """All of one sequence that must be the same."""

    token_ids: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float] | None


def results(events: list[TokenEvent]) -> dict[tuple[str, int], Result]:
    """By request and index."""
    found: dict[tuple[str, int], Result] = {}
    for event in events:
        assert event.error is None
        key = event.request_id, event.index
        if key not in found:
            scores = event.prompt_logprobs
            prompt = None if scores is None else [entry.logprob for entry in scores]
            found[key] = Result(token_ids=[], logprobs=[], prompt_logprobs=prompt)
        found[key].token_ids.extend(event.token_ids)
        found[key].logprobs.extend(entry.logprob for entry in event.logprobs)
    return found


def kind(number: int) -> Callable[[str], GenerateRequest]:
    """One of the requests that histories are made of; many begin alike."""
    rng = random.Random(number)
    prompt = [rng.randrange(3)] * rng.choice((0, 4, 16, 17, 33)) + [
        rng.randrange(VOCAB) for _ in range(rng.randint(1, 24))
    ]
    params: dict[str, Any] = {
        "max_tokens": rng.choice((0, 1, 5, 12, 24)),
        "seed": number,
        "temperature": rng.choice((0.0, 0.7, 1.3)),
        "top_p": rng.choice((1.0, 0.9)),
        "top_k": rng.choice((0, 0, 20)),
        "frequency_penalty": rng.choice((0.0, 0.0, 0.4)),
        "ignore_eos": rng.random() < 0.5,
        "logprobs": 0,
    }
    n, prompt_logprobs = rng.choice((1, 1, 1, 2, 3)), rng.choice((None, None, 0))
    return lambda name: GenerateRequest(
        request_id=name,
        prompt_ids=prompt,
        sampling=SamplingParams(**params),
        n=n,
        prompt_logprobs=prompt_logprobs,
    )


KINDS = [kind(number) for number in range(NUM_KINDS)]


@pytest.fixture(
    scope="module", params=[("llama", "native"), ("mistral", "native"), ("qwen3", "native"), ("llama", "int8")]
)
def model_and_step(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Step]:
    family: Family = request.param[0]
    step: Step = request.param[1]
    return write_tiny_model(tmp_path_factory.mktemp(family), family, seed=1), step


@pytest.fixture(scope="module")
def alone(model_and_step: tuple[Path, Step]) -> list[dict[int, Result]]:
    """What each kind of request yields by itself, by index of the sequence."""
    model, step = model_and_step
    found = []
    with open_loop(model, step=step, prefix_cache=False, overlap=False) as loop:
        for make in KINDS:
            one = results(run_events(loop, [make("alone")]))
            found.append({index: result for (_, index), result in one.items()})
    return found


ENGINES: list[dict[str, Any]] = [
    {"num_pages": 10, "max_num_seqs": 4, "max_batch_tokens": 16},
    {"num_pages": 30, "max_num_seqs": 9, "max_batch_tokens": 64, "num_threads": 2},
    {"num_pages": 60, "page_size": 4, "max_num_seqs": 6, "max_batch_tokens": 24, "num_threads": 2},
    {"num_pages": 24, "max_num_seqs": 5, "max_batch_tokens": 33, "prefix_cache": False, "overlap": False},
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: f"{engine['num_pages']}_pages")
def test_random_histories_yield_what_requests_yield_alone(
    engine: dict[str, Any], model_and_step: tuple[Path, Step], alone: list[dict[int, Result]]
) -> None:
    model, step = model_and_step
    with open_loop(model, step=step, **engine) as loop:
        for seed in range(HISTORIES):
            live_through(loop, random.Random(seed), alone)
        if engine["num_pages"] * engine.get("page_size", 16) < 200:
            assert loop.stats.num_preemptions > 0
        assert loop.stats.num_cached_tokens > 0 or not engine.get("prefix_cache", True)


def live_through(loop: EngineLoop, rng: random.Random, alone: list[dict[int, Result]]) -> None:
    """One history, from an empty engine to an empty engine."""
    kinds: dict[str, int] = {}
    ended: set[tuple[str, int]] = set()
    events: list[TokenEvent] = []
    for count in range(rng.randint(10, 40)):
        if rng.random() < 0.5:
            kinds[str(count)] = rng.randrange(NUM_KINDS)
            loop.submit(KINDS[kinds[str(count)]](str(count)))
        if kinds and rng.random() < 0.15:
            name = rng.choice(list(kinds))
            if rng.random() < 0.6:
                loop.abort(name)
                ended |= {(name, index) for index in range(3)}
            else:
                loop.stop(name, 0)
                ended.add((name, 0))
        events += loop.step()
    while loop.has_work:
        events += loop.step()
    found = results(events)
    for name, number in kinds.items():
        for index, expected in alone[number].items():
            check(found.get((name, index)), expected, is_cut=(name, index) in ended)
    loop.check_integrity()
    loop.clear_cache()
    stats = loop.stats
    assert (stats.num_used_pages, stats.num_cached_pages, stats.num_running, stats.num_waiting) == (0, 0, 0, 0)


def check(found: Result | None, expected: Result, *, is_cut: bool) -> None:
    """A sequence that was ended from outside may have yielded less, but nothing else."""
    if not is_cut:
        assert found == expected
    elif found is not None:
        length = len(found.token_ids)
        assert found.token_ids == expected.token_ids[:length]
        assert found.logprobs == expected.logprobs[:length]
        assert found.prompt_logprobs == expected.prompt_logprobs
