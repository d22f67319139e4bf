"""Device programs that guess: what they may say, and what becomes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.drafting.program import ProgramDrafter
from engine.programs.binding import bind_drafter, bind_sampler
from engine.programs.errors import ProgramInvalid
from engine.sampling.random import stream_key

VOCAB = 10


def drafter_of(
    source: str, token_ids: list[int], *, seed: int = 1, max_tokens: int = 16, **given: Any
) -> ProgramDrafter:
    bound = bind_drafter(source, given, VOCAB)
    return ProgramDrafter(bound, token_ids, 2, stream_key(seed, 0), VOCAB, max_tokens)


def test_it_reads_the_history_and_ends_at_a_token_that_is_none() -> None:
    source = "def propose(history, prev, step, counts):\n    return prev + 1, step, gather(counts, 7), -1, 3\n"
    history = [4, 5, 7, 7]
    drafter = drafter_of(source, history)
    assert drafter.propose(9) == [8, 2, 2]
    assert drafter.propose(2) == [8, 2]
    history += [7]
    assert drafter.propose(9) == [8, 3, 3]
    assert drafter_of(source, history, max_tokens=1).propose(9) == [8]


def test_a_vector_of_tokens_is_a_guess_too() -> None:
    source = "def propose(counts):\n    most, tokens = topk(counts, 3)\n    return tokens\n"
    assert drafter_of(source, [0, 0, 6, 6, 4]).propose(9) == [6, 4, 0]


def test_state_is_carried_from_guess_to_guess() -> None:
    source = "state.n = 0\n\ndef propose(by):\n    state.n = state.n + by\n    return state.n\n"
    drafter = drafter_of(source, [1, 2], by=2)
    assert [drafter.propose(4) for _ in range(5)] == [[2], [4], [6], [8], []]


def test_a_drawn_guess_says_what_it_was_drawn_from() -> None:
    source = (
        "def propose(key, counts):\n    q = float(counts)\n    a = categorical(q, key)\n    return (a, q), (3, q)\n"
    )
    found = set()
    for seed in range(40):
        drafter = drafter_of(source, [0, 0, 6, 6, 4], seed=seed)
        (guess,) = drafter.propose(9)  # the second cannot have been drawn from that
        assert drafter.propose(9) == [guess]
        (offer,) = drafter.offers
        assert offer.probability == pytest.approx({6: 2 / 3, 4: 1 / 3}[guess])
        assert offer.probabilities.sum() == pytest.approx(1.0)
        found.add(guess)
    assert found == {4, 6}


def test_one_drawn_guess_is_a_pair() -> None:
    drafter = drafter_of("def propose(counts):\n    return 6, float(counts)\n", [0, 0, 6, 6, 4])
    assert drafter.propose(9) == [6]
    assert [offer.probability for offer in drafter.offers] == [pytest.approx(2 / 3)]


def test_weights_that_are_none_end_the_guess() -> None:
    source = "def propose(counts):\n    q = log(0.0 * float(counts))\n    return (3, q), (4, q)\n"
    drafter = drafter_of(source, [1, 2])
    assert drafter.propose(9) == []
    assert list(drafter.offers) == []


def test_draws_of_guesses_are_not_those_of_the_sampler() -> None:
    """The first draw of a sampler has the position's own key; a guess must not know what will be drawn."""
    source = "def propose(key):\n    a = int(uniform(key) * 1000.0)\n    return a % vocab_size\n"
    guesses = [drafter_of(source, [1, 2], seed=seed).propose(1)[0] for seed in range(30)]
    assert len(set(guesses)) > 4
    assert np.isfinite(guesses).all()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def propose(logits):\n    return argmax(logits)\n", "not there yet"),
        ("def propose(lanes):\n    return 1\n", "not there yet"),
        ("def propose(prev):\n    return prev, 1.0\n", "a guess is i64"),
        ("def propose(counts):\n    return counts\n", r"this is i64\[V\]"),
        ("def propose(prev, counts):\n    return (prev, counts)\n", "a guess is i64"),
        ("def propose(prev, counts):\n    return prev, float(counts), prev\n", "a guess is i64"),
        ("def propose(prev, counts):\n    return (prev, float(counts)), prev\n", "either all guesses"),
        ("def propose(prev, counts):\n    return (prev, counts), (prev, counts)\n", r"drawn from is f32\[V\]"),
        ("def propose(prev):\n    return (prev, prev, prev), prev\n", "what it was drawn from"),
        ("def propose(counts):\n    a, b = topk(counts, 65)\n    return b\n", "64 are allowed"),
        ("def propose(prev):\n    return " + ", ".join(["prev"] * 65) + "\n", "64 are allowed"),
        ("def propose(prev):\n    probe.x = prev\n    return prev\n", "nobody reads"),
        ("def sample(prev):\n    return prev\n", "here `propose` is needed"),
        ("def guess(prev):\n    return prev\n", "or `propose`"),
        ("def propose(prev):\n    return\n", "the tokens that it guesses"),
    ],
)
def test_what_is_no_guess_is_refused_with_a_reason(source: str, message: str) -> None:
    with pytest.raises(ProgramInvalid, match=message):
        bind_drafter(source, {}, 100)


def test_what_guesses_does_not_draw() -> None:
    with pytest.raises(ProgramInvalid, match="for `drafter`"):
        bind_sampler("def propose(prev):\n    return prev\n", {}, VOCAB)
