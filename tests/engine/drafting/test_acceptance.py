"""Guesses that were drawn: what comes out is distributed as it is without them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine.drafting.acceptance import decide, probabilities
from engine.drafting.drafter import GivenGuesses
from engine.drafting.offers import Offer, make_offer
from engine.request import Proposal
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import SampleLane, Sampler
from engine.sampling.state import RowState, SamplerState

VOCAB = 12
NUM_DRAWS = 4_000


def row_of(**fields: float) -> RowState:
    state = SamplerState(num_rows=1, vocab_size=VOCAB, device=torch.device("cpu"))
    params = SamplingParams(**{"max_tokens": 1, "temperature": 1.0, **fields})  # type: ignore[arg-type]
    state.assign(0, params=params, seed=7, stream=0, prompt_ids=[1], output_ids=[], eos_token_ids=[])
    return state[0]


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def offer_of(token_id: int, weights: npt.NDArray[np.float64]) -> Offer:
    made = make_offer(token_id, np.arange(VOCAB), weights)
    assert made is not None
    return made


def drawn(logits: torch.Tensor, row: RowState, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Shares of the tokens that come out where guesses are drawn from these weights."""
    rng = np.random.default_rng(3)
    guesses = rng.choice(VOCAB, size=NUM_DRAWS, p=weights / weights.sum())
    found = [decide(logits, row, position, offer_of(int(guess), weights)) for position, guess in enumerate(guesses)]
    return np.bincount(found, minlength=VOCAB) / NUM_DRAWS


@pytest.mark.parametrize(
    "fields",
    [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.7, "temperature": 1.4}, {"min_p": 0.2}],
    ids=["plain", "cool", "top_k", "top_p", "min_p"],
)
def test_what_comes_out_is_distributed_as_without_a_guess(fields: dict[str, float]) -> None:
    logits, row = logits_of(1), row_of(**fields)
    target = probabilities(logits, row).numpy()
    assert target.sum() == pytest.approx(1.0)
    weights = np.random.default_rng(1).random(VOCAB) ** 3 + 1e-3
    shares = drawn(logits, row, weights)
    assert np.abs(shares - target).max() < 4 * np.sqrt(0.25 / NUM_DRAWS)
    assert not shares[target == 0.0].any()


def test_the_target_is_what_the_sampler_draws_from() -> None:
    """Draws of the sampler itself have the shares that `probabilities` says."""
    state = SamplerState(num_rows=1, vocab_size=VOCAB, device=torch.device("cpu"))
    params = SamplingParams(max_tokens=1, temperature=1.3, top_k=7, top_p=0.9, min_p=0.02)
    state.assign(0, params=params, seed=7, stream=0, prompt_ids=[1], output_ids=[], eos_token_ids=[])
    sampler, logits = Sampler(state), logits_of(2)
    found = [
        int(sampler.sample(logits[None].clone(), [SampleLane(row=0, position=at, num_output=0)]).token_ids[0])
        for at in range(NUM_DRAWS)
    ]
    shares = np.bincount(found, minlength=VOCAB) / NUM_DRAWS
    assert np.abs(shares - probabilities(logits, state[0]).numpy()).max() < 4 * np.sqrt(0.25 / NUM_DRAWS)


def test_a_guess_from_the_very_distribution_always_stands() -> None:
    logits, row = logits_of(4), row_of()
    weights = probabilities(logits, row).numpy()
    for position in range(200):
        guess = position % VOCAB
        assert decide(logits, row, position, offer_of(guess, weights)) == guess


def test_a_greedy_request_takes_the_likeliest_whatever_is_guessed() -> None:
    logits, row = logits_of(5), row_of(temperature=0.0)
    likeliest = int(logits.argmax())
    for guess in range(VOCAB):
        assert decide(logits, row, guess, offer_of(guess, np.ones(VOCAB))) == likeliest


def test_what_must_not_come_never_comes() -> None:
    logits = logits_of(6)
    logits[[0, 3, 5]] = -torch.inf
    for position in range(300):
        assert decide(logits, row_of(), position, offer_of(3, np.ones(VOCAB))) not in (0, 3, 5)


@pytest.mark.parametrize(
    ("token_id", "weights"),
    [(0, [0.0, 1.0]), (2, [0.5, 0.5]), (0, [1.0, -0.1]), (0, [np.nan, 1.0]), (0, [np.inf, 1.0]), (0, [])],
)
def test_a_token_that_cannot_have_been_drawn_makes_no_offer(token_id: int, weights: list[float]) -> None:
    assert make_offer(token_id, np.arange(2), np.array(weights, dtype=np.float64)) is None


def proposal(ids: list[int], weights: list[float]) -> Proposal:
    return Proposal(np.array(ids, "<i4").tobytes(), np.array(weights, "<f8").tobytes())


def test_a_given_guess_is_used_once_and_ends_where_it_makes_no_sense() -> None:
    drafter = GivenGuesses(VOCAB)
    drafter.give([3, 4, VOCAB, 5], [])
    assert drafter.propose(8) == [3, 4]
    assert drafter.propose(8) == []
    good = proposal([3, 4], [2.0, 6.0])
    drafter.give([3, 4, 9, 3], [good, good, good, good])
    assert drafter.propose(1) == [3]
    assert [offer.probability for offer in drafter.offers] == [0.25]
    drafter.give([4, 4], [good, proposal([4, VOCAB], [1.0, 1.0])])
    assert drafter.propose(8) == [4]
    assert len(drafter.offers) == 1
