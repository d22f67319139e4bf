"""Guesses of callers and of device programs: only the number of steps depends on them, unless they were drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.contexts.commands import AppendTokens, OpenContext
from engine.errors import InvalidRequest
from engine.loop import EngineLoop
from engine.request import DrafterSpec, GenerateRequest, ProgramSpec, Proposal, TokenEvent
from engine.sampling.params import SamplingParams
from tests.equivalence.harness import STEPS, Step, open_loop, run_events
from tests.equivalence.test_drafting import WAYS, asked, garbled, prompt_of, same, told
from tests.tiny_models import write_tiny_model

Guesser = Callable[[Sequence[int], int], tuple[list[int], list[Proposal]]]
"""What is generated already, and how many tokens are wanted."""

BIGRAMS = """
def propose(history, places, prev):
    marked = places * vocab_size + history
    first = max(where(shift(history, 1) == prev, marked, -1))
    first = where(first < 0, -1, first % vocab_size)
    second = max(where(shift(history, 1) == first, marked, -1))
    return first, where(second < 0, -1, second % vocab_size)
"""

DRAWN = """
def propose(key, counts):
    weights = 1.0 / (1.0 + float(counts))
    first = categorical(weights, key)
    second = categorical(weights, key)
    return (first, weights), (second, weights)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=1)


def on_context(loop: EngineLoop, request: GenerateRequest, drafter: DrafterSpec | None) -> GenerateRequest:
    """The same on a new held context."""
    loop.obey(OpenContext(request.request_id))
    loop.obey(AppendTokens(request.request_id, list(request.prompt_ids)))
    return msgspec.structs.replace(request, prompt_ids=[], context_id=request.request_id, drafter=drafter)


def run_guessed(loop: EngineLoop, requests: Sequence[GenerateRequest], guess: Guesser) -> list[TokenEvent]:
    """Runs requests on contexts of their own, and answers each that waits for a guess."""
    events: list[TokenEvent] = []
    outputs: dict[str, list[int]] = {}
    for request in requests:
        loop.submit(on_context(loop, request, DrafterSpec(given=True)))
    while loop.has_work:
        news = loop.step()
        events += news
        for event in news:
            output = outputs.setdefault(event.request_id, [])
            output += event.token_ids
            if event.num_wanted:
                assert event.finish_reason is None
                loop.guess(event.request_id, *guess(output, event.num_wanted))
    return events


@pytest.mark.parametrize("step", STEPS)
def test_a_caller_who_guesses_gets_the_tokens_of_one_who_does_not(model: Path, step: Step) -> None:
    ways = {name: fields for name, fields in WAYS.items() if "n" not in fields}
    requests = [asked(name, prompt_of(9 + at, at), **fields) for at, (name, fields) in enumerate(ways.items())]
    with open_loop(model, step=step) as loop:
        plain = told(run_events(loop, [msgspec.structs.replace(one, request_id=one.request_id) for one in requests]))
        texts = {name: garbled(plain[name, 0].token_ids) for name in ways}
        rng = random.Random(2)

        def guess(output: Sequence[int], most: int) -> tuple[list[int], list[Proposal]]:
            name = next(name for name in ways if plain[name, 0].token_ids[: len(output)] == list(output))
            at = len(output)
            return texts[name][at : at + min(most, rng.randrange(6))], []

        drafted = told(run_guessed(loop, requests, guess))
    same(plain, drafted, step)
    assert sum(one.num_accepted for one in drafted.values()) > 0
    assert sum(one.num_drafted - one.num_accepted for one in drafted.values()) > 0


def test_a_perfect_guess_saves_steps_and_no_guess_saves_none(model: Path) -> None:
    request = asked("it", prompt_of(9), temperature=0.9, max_tokens=64)
    with open_loop(model) as loop:
        answer = told(run_events(loop, [request]))["it", 0].token_ids
        plain_steps = loop.stats.num_steps
        known = run_guessed(loop, [request], lambda output, most: (answer[len(output) :][: min(most, 15)], []))
        assert told(known)["it", 0].token_ids == answer
        steps = loop.stats.num_steps
        assert steps - plain_steps <= 6
        other = msgspec.structs.replace(request, request_id="other")
        nothing = told(run_guessed(loop, [other], lambda output, most: ([], [])))["other", 0]
        assert (nothing.token_ids, nothing.num_drafted) == (answer, 0)
        assert loop.stats.num_steps - steps >= plain_steps - 1


def test_a_program_guesses_from_the_history(model: Path) -> None:
    requests = [asked("it", prompt_of(5) * 6, max_tokens=64), asked("other", prompt_of(7) * 4, temperature=0.5)]
    drafter = DrafterSpec(program=ProgramSpec(source=BIGRAMS))
    with open_loop(model) as loop:
        plain = told(run_events(loop, requests))
        steps = loop.stats.num_steps
        drafted = told(run_events(loop, [msgspec.structs.replace(one, drafter=drafter) for one in requests]))
        assert loop.stats.num_steps - steps < steps
    same(plain, drafted, "torch")
    assert drafted["it", 0].num_accepted > 0


def test_guesses_take_no_pages_from_others_and_survive_preemption(model: Path) -> None:
    requests = [asked(str(at), prompt_of(30, at), max_tokens=60, temperature=0.9) for at in range(6)]
    with open_loop(model, num_pages=200) as loop:
        plain = told(run_events(loop, requests))
    answers = [one.token_ids for one in plain.values()]

    def guess(output: Sequence[int], most: int) -> tuple[list[int], list[Proposal]]:
        answer = next(one for one in answers if one[: len(output)] == list(output))
        return answer[len(output) :][: min(most, 5)], []

    with open_loop(model, num_pages=16, max_batch_tokens=24) as loop:
        drafted = told(run_guessed(loop, requests, guess))
    same(plain, drafted, "torch")


def drawing(weights: dict[int, float], seed: int) -> Guesser:
    """Draws guesses from weights, and says so."""
    ids = np.array(list(weights), "<i4")
    values = np.array(list(weights.values()), "<f8")
    rng = np.random.default_rng(seed)

    def guess(output: Sequence[int], most: int) -> tuple[list[int], list[Proposal]]:
        del output
        drawn = rng.choice(ids, size=min(most, 2), p=values / values.sum())
        return [int(one) for one in drawn], [Proposal(ids.tobytes(), values.tobytes())] * len(drawn)

    return guess


@pytest.mark.parametrize("kind", ["given", "program"])
def test_drawn_guesses_leave_the_distribution_as_it_is(model: Path, kind: str) -> None:
    """Shares of second and third tokens over many seeds, beside those that come without guesses."""
    allowed, num_runs = {3: 1.0, 5: 2.0, 8: 1.0, 11: 4.0}, 1200

    def request(at: int) -> GenerateRequest:
        return asked(str(at), [1, 2, 3, 4], temperature=1.0, max_tokens=4, seed=at, allowed_token_ids=tuple(allowed))

    def shares(events: Sequence[TokenEvent]) -> list[Any]:
        texts = [one.token_ids for one in told(events).values()]
        return [np.bincount([text[at] for text in texts], minlength=12) / num_runs for at in (1, 2)]

    with open_loop(model, max_num_seqs=64, max_batch_tokens=1024) as loop:
        plain = shares(run_events(loop, [request(at) for at in range(num_runs)]))
        if kind == "given":
            events = run_guessed(loop, [request(at) for at in range(num_runs)], drawing(allowed, 1))
        else:
            drafter = DrafterSpec(program=ProgramSpec(source=DRAWN))
            asking = [msgspec.structs.replace(request(at), drafter=drafter) for at in range(num_runs)]
            events = run_events(loop, asking)
        guessed = shares(events)
        found = told(events)
        num_drafted = sum(one.num_drafted for one in found.values())
        assert 0 < sum(one.num_accepted for one in found.values()) < num_drafted
    for mine, theirs in zip(plain, guessed, strict=True):
        assert np.abs(mine - theirs).max() < 5 * np.sqrt(0.5 / num_runs)


def test_drawn_guesses_give_the_same_tokens_again_for_the_same_seed(model: Path) -> None:
    request = asked("it", prompt_of(6), temperature=1.0, max_tokens=30, logprobs=1)
    weights = dict.fromkeys(range(400), 1.0)
    with open_loop(model) as loop:
        first = told(run_guessed(loop, [request], drawing(weights, 1)))["it", 0]
    with open_loop(model) as loop:
        second = told(run_guessed(loop, [request], drawing(weights, 1)))["it", 0]
    assert first == second
    assert len(first.logprobs) == 30


@pytest.mark.parametrize(
    ("request_", "drafter"),
    [
        (asked("it", [1, 2, 3]), DrafterSpec(given=True)),
        (asked("it", [1, 2, 3]), DrafterSpec(program=ProgramSpec(source="def sample(prev):\n    return prev\n"))),
        (asked("it", [1, 2, 3]), DrafterSpec(program=ProgramSpec(source="def propose(prev):\n    return 1.0\n"))),
        (
            asked("it", [1, 2, 3], program=ProgramSpec(source="def sample(logits):\n    return argmax(logits)\n")),
            DrafterSpec(program=ProgramSpec(source=DRAWN)),
        ),
    ],
    ids=["no context", "draws", "no token", "beside a sampler"],
)
def test_guesses_that_make_no_sense_are_refused(model: Path, request_: GenerateRequest, drafter: DrafterSpec) -> None:
    with open_loop(model) as loop:
        with pytest.raises(InvalidRequest):
            loop.submit(msgspec.structs.replace(request_, drafter=drafter))
        assert not loop.has_work


def test_a_guess_for_nobody_is_left_alone(model: Path) -> None:
    with open_loop(model) as loop:
        loop.guess("nobody", [1], [])
        loop.submit(asked("plain", [1, 2, 3], max_tokens=3))
        loop.guess("plain", [1], [])
        assert not loop.stats.num_drafted_tokens
        while loop.has_work:
            loop.step()


def test_a_request_that_waits_for_a_guess_can_be_aborted(model: Path) -> None:
    request = GenerateRequest(request_id="it", prompt_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=20))
    with open_loop(model) as loop:
        loop.submit(on_context(loop, request, DrafterSpec(given=True)))
        events: list[TokenEvent] = []
        while not any(event.num_wanted for event in events):
            events += loop.step()
        assert not loop.has_work
        loop.abort("it")
        loop.guess("it", [1], [])
        assert not loop.has_work
