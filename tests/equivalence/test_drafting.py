"""What is generated does not depend on a drafter: same tokens, log-probabilities and ends, in fewer steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.config import AdapterSource
from engine.errors import InvalidRequest
from engine.loop import EngineLoop
from engine.request import (
    ConstraintKind,
    ConstraintSpec,
    DrafterSpec,
    FinishReason,
    GenerateRequest,
    ProgramSpec,
    TokenEvent,
)
from engine.sampling.params import SamplingParams
from tests.equivalence.harness import STEPS, Step, open_loop, run_events
from tests.equivalence.test_constrained import AMID_TEXT
from tests.tiny_adapters import write_tiny_adapter
from tests.tiny_models import write_tiny_model

PROGRAM = """
state.seen = 0.0

def sample(logits, key):
    state.seen = state.seen + 1.0
    return gumbel_argmax(logits * (1.0 + 0.01 * state.seen), key)
"""


@dataclass(slots=True)
class Told:
    """All that was told of one sequence."""

    token_ids: list[int]
    logprobs: list[tuple[float, list[int], int]]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_drafted: int = 0
    num_accepted: int = 0


def told(events: Sequence[TokenEvent]) -> dict[tuple[str, int], Told]:
    found: dict[tuple[str, int], Told] = {}
    for event in events:
        assert event.error is None
        one = found.setdefault((event.request_id, event.index), Told([], []))
        one.token_ids += event.token_ids
        one.logprobs += [(entry.logprob, entry.top_ids, entry.rank) for entry in event.logprobs]
        one.finish_reason, one.stop_token_id = event.finish_reason, event.stop_token_id
        one.num_drafted += event.num_drafted
        one.num_accepted += event.num_accepted
    return found


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(400) for _ in range(length)]


def asked(name: str, prompt_ids: Sequence[int], *, n: int = 1, adapter: str = "", **fields: Any) -> GenerateRequest:
    constraint, program = fields.pop("constraint", None), fields.pop("program", None)
    sampling = SamplingParams(**{"max_tokens": 40, "temperature": 0.0, "seed": 5, "ignore_eos": True, **fields})
    return GenerateRequest(
        request_id=name,
        prompt_ids=list(prompt_ids),
        sampling=sampling,
        n=n,
        adapter=adapter,
        constraint=constraint,
        program=program,
    )


def with_drafter(request: GenerateRequest, reference: Sequence[int] = (), **fields: Any) -> GenerateRequest:
    drafter = DrafterSpec(reference_ids=list(reference), **{"min_match": 1, "max_match": 3, **fields})
    return msgspec.structs.replace(request, drafter=drafter)


def garbled(token_ids: Sequence[int], seed: int = 1) -> list[int]:
    """A text that an answer resembles: some tokens are others, some are missing, some are more."""
    rng = random.Random(seed)
    found: list[int] = []
    for token_id in token_ids:
        if rng.random() > 0.08:
            found.append(token_id)
        if rng.random() < 0.08:
            found.append(rng.randrange(400))
    return found


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.9},
    "several": {"temperature": 0.9, "n": 3},
    "truncated": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.7, "frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.2},
    "biased": {"logit_bias": {7: 3.0, 9: -5.0}, "bad_words": ((11, 12), (13,))},
    "reported": {"temperature": 0.8, "logprobs": 3},
    "ended": {"temperature": 1.0, "stop_token_ids": tuple(range(0, 400, 17)), "min_tokens": 9},
    "cut": {"max_tokens": 7},
    "programmed": {"program": ProgramSpec(source=PROGRAM)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AdapterSource:
    return write_tiny_adapter(tmp_path_factory.mktemp("adapter") / "adapter", model, "lora")


def same(first: dict[tuple[str, int], Told], second: dict[tuple[str, int], Told], step: Step) -> None:
    """The same was told but for how many tokens were guessed; torch rounds the last bits of a number by its batch."""
    assert first.keys() == second.keys()
    for key, one in first.items():
        other = second[key]
        assert one.token_ids == other.token_ids, key
        assert (one.finish_reason, one.stop_token_id) == (other.finish_reason, other.stop_token_id)
        assert len(one.logprobs) == len(other.logprobs)
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert mine[1:] == theirs[1:]
            assert mine[0] == pytest.approx(theirs[0], abs=1e-3 if step == "torch" else 0)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_text_that_the_answer_resembles_changes_nothing_of_it(model: Path, step: Step, overlap: bool) -> None:
    requests = [asked(name, prompt_of(9 + at, at), **fields) for at, (name, fields) in enumerate(WAYS.items())]
    with open_loop(model, step=step, overlap=overlap) as loop:
        plain = told(run_events(loop, requests))
        plain_steps = loop.stats.num_steps
        drafting = [with_drafter(one, garbled(plain[one.request_id, 0].token_ids)) for one in requests]
        drafted = told(run_events(loop, drafting))
        alone = {key: value for one in drafting for key, value in told(run_events(loop, [one])).items()}
    same(plain, drafted, step)
    same(plain, alone, step)
    for name in WAYS:
        assert drafted[name, 0].num_drafted >= drafted[name, 0].num_accepted > 0, name
    assert plain_steps > 0
    assert all(one.num_drafted == 0 for one in plain.values())


def test_a_good_guess_saves_steps(model: Path) -> None:
    request = asked("it", prompt_of(9), temperature=0.9, max_tokens=64)
    with open_loop(model) as loop:
        answer = told(run_events(loop, [request]))["it", 0].token_ids
        plain_steps = loop.stats.num_steps
        drafted = told(run_events(loop, [with_drafter(request, answer, max_tokens=16)]))["it", 0]
        drafted_steps = loop.stats.num_steps - plain_steps
        assert loop.stats.num_drafted_tokens == drafted.num_drafted
        assert loop.stats.num_accepted_tokens == drafted.num_accepted
    assert drafted.token_ids == answer
    assert drafted.num_drafted == drafted.num_accepted
    assert drafted_steps < plain_steps / 8


def test_what_repeats_itself_is_guessed_from_the_history(model: Path) -> None:
    request = asked("it", prompt_of(5) * 6, max_tokens=64)
    with open_loop(model) as loop:
        plain = told(run_events(loop, [request]))
        drafted = told(run_events(loop, [with_drafter(request)]))
    same(plain, drafted, "torch")
    assert drafted["it", 0].num_accepted > 0


@pytest.mark.parametrize("step", STEPS)
def test_a_language_is_kept_to_behind_every_guess(model: Path, step: Step) -> None:
    languages = {
        "amid text": AMID_TEXT,
        "regex": ConstraintSpec(kind=ConstraintKind.REGEX, source="([a-f]{2} ){3,12}end"),
        "schema": ConstraintSpec(
            kind=ConstraintKind.JSON_SCHEMA,
            source='{"type": "array", "items": {"enum": ["red", "blue", 1, 22]}, "minItems": 4, "maxItems": 9}',
        ),
    }
    requests = [
        asked(f"{name} {temperature}", prompt_of(12), constraint=one, temperature=temperature, max_tokens=60)
        for name, one in languages.items()
        for temperature in (0.0, 1.0)
    ]
    with open_loop(model, step=step) as loop:
        plain = told(run_events(loop, requests))
        for seed in range(2):
            drafting = [with_drafter(one, garbled(plain[one.request_id, 0].token_ids, seed)) for one in requests]
            drafted = told(run_events(loop, drafting))
            same(plain, drafted, step)
        assert sum(one.num_accepted for one in drafted.values()) > 0


def test_lanes_with_an_adapter_draft_too(model: Path, adapter: AdapterSource) -> None:
    requests = [asked(name or "plain", prompt_of(9), adapter=name, temperature=0.8) for name in ("", "adapter")]
    with open_loop(model, adapters=[adapter]) as loop:
        plain = told(run_events(loop, requests))
        drafted = told(run_events(loop, [with_drafter(one, plain[one.request_id, 0].token_ids) for one in requests]))
    same(plain, drafted, "torch")
    assert all(one.num_accepted > 0 for one in drafted.values())


def test_drafts_take_no_pages_from_others_and_survive_their_own_preemption(model: Path) -> None:
    requests = [asked(str(at), prompt_of(30, at), max_tokens=60, temperature=0.9) for at in range(6)]
    with open_loop(model, num_pages=200) as loop:
        plain = told(run_events(loop, requests))
    references = [garbled(plain[one.request_id, 0].token_ids) for one in requests]
    with open_loop(model, num_pages=16, max_batch_tokens=24) as loop:
        drafting = [with_drafter(one, reference) for one, reference in zip(requests, references, strict=True)]
        drafted = told(run_events(loop, drafting))
        assert loop.stats.num_preemptions > 0
    same(plain, drafted, "torch")


def test_requests_that_come_and_go_leave_no_page_behind(model: Path) -> None:
    rng = random.Random(3)
    with open_loop(model, num_pages=24, max_batch_tokens=24) as loop:
        live: list[str] = []
        for at in range(40):
            prompt = prompt_of(rng.randrange(1, 40), at % 5)
            request = asked(str(at), prompt, max_tokens=rng.randrange(1, 50), n=rng.randrange(1, 3))
            loop.submit(with_drafter(request, prompt * 2))
            live.append(str(at))
            for _ in range(rng.randrange(6)):
                loop.step()
            if rng.random() < 0.3:
                loop.abort(live.pop(rng.randrange(len(live))))
        while loop.has_work:
            loop.step()
        assert loop.stats.num_accepted_tokens > 0
        assert loop.stats.num_used_pages == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "drafter.max_tokens"),
        ({"max_tokens": 65}, "drafter.max_tokens"),
        ({"min_match": 0}, "drafter.min_match"),
        ({"min_match": 4, "max_match": 3}, "drafter.min_match"),
        ({"max_match": 33}, "drafter.min_match"),
        ({"reference": [512]}, "drafter"),
    ],
)
def test_a_drafter_that_makes_no_sense_is_refused(model: Path, fields: dict[str, Any], param: str) -> None:
    with open_loop(model) as loop:
        refuse(loop, with_drafter(asked("it", [1, 2, 3]), **fields), param)


def refuse(loop: EngineLoop, request: GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        loop.submit(request)
    assert caught.value.param == param
    assert not loop.has_work


def test_a_sequence_that_guesses_takes_part_in_every_step_beside_others(model: Path) -> None:
    plain = [asked(str(at), prompt_of(9, at), temperature=0.9, max_tokens=40) for at in range(2)]
    with open_loop(model) as loop:
        answer = told(run_events(loop, [plain[0]]))["0", 0].token_ids
        one_by_one = loop.stats.num_steps
        wrong = [(token_id + 1) % 400 for token_id in answer]
        run_events(loop, [with_drafter(plain[0], [*answer[:4], *wrong[4:]], min_match=3), plain[1]])
        assert loop.stats.num_drafted_tokens > loop.stats.num_accepted_tokens
        assert loop.stats.num_steps - one_by_one <= one_by_one + 1
