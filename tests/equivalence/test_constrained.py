"""Constrained sequences beside others, in random schedules: each yields what it yields alone, and it is valid."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.loop import EngineLoop
from engine.request import ConstraintKind, ConstraintSpec, FinishReason, GenerateRequest, Opening, TokenEvent
from engine.sampling.params import SamplingParams
from engine.text.tokenizer import Tokenizer
from tests.equivalence.harness import STEPS, Step, open_loop, run_events
from tests.tiny_models import write_tiny_model

VOCAB = 400
NUM_KINDS = 24
HISTORIES = 8

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

MARKERS = tuple(chr(code) for code in range(1, 32) if chr(code) not in "\t\n\r")
AMID_TEXT = ConstraintSpec(
    kind=ConstraintKind.LARK,
    source="""start: text | begun text
text: /(?s:.*)/
begun: marker ("ab" | "cdcd") "]"
marker[lazy]: /(?s:.*)[\\x01-\\x08\\x0b\\x0c\\x0e-\\x1f]/
""",
    opening=Opening(markers=MARKERS),
)
"""Free text, but for what follows a control character: no token has one of those and something behind it."""

CONSTRAINTS: list[ConstraintSpec | None] = [
    None,
    AMID_TEXT,
    ConstraintSpec(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(SCHEMA), compact=True),
    ConstraintSpec(kind=ConstraintKind.CHOICE, source='["a long choice to make", "a long way", "no"]'),
    ConstraintSpec(kind=ConstraintKind.REGEX, source="(ab|cd)+ end"),
    ConstraintSpec(kind=ConstraintKind.JSON_OBJECT, compact=True),
]

Results = dict[tuple[str, int], tuple[list[int], list[float], FinishReason | None]]


def kind(number: int) -> Callable[[str], GenerateRequest]:
    """One of the requests that histories are made of."""
    rng = random.Random(number)
    prompt = [rng.randrange(3)] * rng.choice((0, 4, 17)) + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
    params: dict[str, Any] = {
        "max_tokens": rng.choice((1, 7, 30, 60)),
        "seed": number,
        "temperature": rng.choice((0.0, 0.8, 1.4)),
        "top_k": rng.choice((0, 0, 20)),
        "frequency_penalty": rng.choice((0.0, 0.0, 0.4)),
        "ignore_eos": rng.random() < 0.3,
        "logprobs": rng.choice((None, None, 0)),
    }
    n, prompt_logprobs = rng.choice((1, 1, 2, 3)), rng.choice((None, None, None, 0))
    return lambda name: GenerateRequest(
        request_id=name,
        prompt_ids=prompt,
        sampling=SamplingParams(**params),
        n=n,
        prompt_logprobs=prompt_logprobs,
        constraint=CONSTRAINTS[number % len(CONSTRAINTS)],
    )


KINDS = [kind(number) for number in range(NUM_KINDS)]


def results(events: list[TokenEvent]) -> Results:
    found: Results = {}
    for event in events:
        assert event.error is None
        ids, logprobs, _ = found.get((event.request_id, event.index), ([], [], None))
        logprobs = logprobs + [entry.logprob for entry in event.logprobs]
        found[event.request_id, event.index] = (ids + event.token_ids, logprobs, event.finish_reason)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("constrained"), "llama", seed=2)


@pytest.fixture(scope="module", params=STEPS)
def step(request: pytest.FixtureRequest) -> Step:
    chosen: Step = request.param
    return chosen


@pytest.fixture(scope="module")
def alone(model: Path, step: Step) -> list[Results]:
    """What each kind yields by itself, without running ahead."""
    with open_loop(model, step=step, prefix_cache=False, overlap=False) as loop:
        return [results(run_events(loop, [make("alone")])) for make in KINDS]


def test_what_ends_by_itself_is_valid(alone: list[Results], model: Path) -> None:
    tokenizer = Tokenizer.load(model)
    num_whole = num_begun = 0
    for number, found in enumerate(alone):
        spec = CONSTRAINTS[number % len(CONSTRAINTS)]
        for ids, _, reason in found.values():
            assert reason in (FinishReason.STOP, FinishReason.LENGTH)
            text = tokenizer.decode(ids)
            if spec is AMID_TEXT:
                begun = re.findall(r"[\x01-\x08\x0b\x0c\x0e-\x1f][^\]]*", text)
                num_begun += len(begun)
                assert {one[1:] for one in begun[:-1]} <= {"ab", "cdcd"}
            if spec in (None, AMID_TEXT) or reason is FinishReason.LENGTH:
                continue
            assert spec is not None
            num_whole += 1
            if spec.kind is ConstraintKind.JSON_SCHEMA:
                assert set(json.loads(text)) == {"name", "age", "tags"}
            elif spec.kind is ConstraintKind.JSON_OBJECT:
                assert isinstance(json.loads(text), dict)
            elif spec.kind is ConstraintKind.CHOICE:
                assert text in json.loads(spec.source)
            else:
                assert text.endswith(" end")
    assert num_whole >= 8
    assert num_begun >= 4


def test_forced_tokens_take_fewer_steps_and_change_nothing(model: Path, step: Step) -> None:
    spec = ConstraintSpec(kind=ConstraintKind.LARK, source='start: "what is to be said " ("yes" | "no") " and goes on"')
    skipped = GenerateRequest(
        request_id="skipped", prompt_ids=[1, 5, 9], sampling=SamplingParams(max_tokens=60, seed=3), constraint=spec
    )
    params = msgspec.structs.replace(skipped.sampling, logprobs=0)
    drawn = msgspec.structs.replace(skipped, request_id="drawn", sampling=params)
    with open_loop(model, step=step) as loop:
        before = loop.stats.num_steps
        first = results(run_events(loop, [skipped]))["skipped", 0]
        between, num_forced = loop.stats.num_steps, loop.stats.num_forced_tokens
        second = results(run_events(loop, [drawn]))["drawn", 0]
        after = loop.stats.num_steps
        assert loop.stats.num_forced_tokens == num_forced
    assert Tokenizer.load(model).decode(first[0]) == Tokenizer.load(model).decode(second[0])
    assert first[2] is second[2] is FinishReason.STOP
    assert between - before < (after - between) / 2
    assert len(first[0]) / 2 < num_forced < len(first[0])


@pytest.mark.parametrize("engine", [{"num_pages": 12, "max_num_seqs": 5, "max_batch_tokens": 24}, {"overlap": False}])
def test_random_histories_yield_what_requests_yield_alone(
    engine: dict[str, Any], model: Path, step: Step, alone: list[Results]
) -> None:
    with open_loop(model, step=step, **engine) as loop:
        for seed in range(HISTORIES):
            live_through(loop, random.Random(seed), alone, exact=step != "torch")
        assert loop.stats.num_preemptions > 0 or "num_pages" not in engine


def live_through(loop: EngineLoop, rng: random.Random, alone: list[Results], *, exact: bool) -> None:
    """One history, from an empty engine to an empty engine."""
    kinds: dict[str, int] = {}
    cut: set[tuple[str, int]] = set()
    events: list[TokenEvent] = []
    for count in range(rng.randint(10, 30)):
        if rng.random() < 0.5:
            kinds[str(count)] = rng.randrange(NUM_KINDS)
            loop.submit(KINDS[kinds[str(count)]](str(count)))
        if kinds and rng.random() < 0.15:
            name = rng.choice(list(kinds))
            if rng.random() < 0.6:
                loop.abort(name)
                cut |= {(name, index) for index in range(3)}
            else:
                loop.stop(name, 0)
                cut.add((name, 0))
        events += loop.step()
    while loop.has_work:
        events += loop.step()
    found = results(events)
    for name, number in kinds.items():
        for (_, index), (ids, logprobs, reason) in alone[number].items():
            is_cut = (name, index) in cut
            got = found.get((name, index), ([], [], None) if is_cut else None)
            assert got is not None
            length = len(got[0]) if is_cut else len(ids)
            assert got[0] == ids[:length]
            assert got[2] is reason or is_cut
            expected = logprobs[: len(got[1])]
            assert got[1] == (expected if exact else pytest.approx(expected, abs=1e-4))
    loop.check_integrity()
    loop.clear_cache()
    assert (loop.stats.num_used_pages, loop.stats.num_running, loop.stats.num_waiting) == (0, 0, 0)
