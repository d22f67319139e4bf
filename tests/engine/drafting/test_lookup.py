"""Guesses are read out of what is there already, longer the longer they were right, and never out of thin air."""

from __future__ import annotations

import random

import msgspec

from engine.drafting.lookup import PromptLookup
from engine.request import DrafterSpec


def lookup(
    history: list[int], *, reference: list[int] | None = None, num_prompt: int = 0, **fields: int
) -> PromptLookup:
    spec = DrafterSpec(max_tokens=8, min_match=2, max_match=3, reference_ids=reference or [])
    spec = msgspec.structs.replace(spec, **fields)
    return PromptLookup(spec, history, num_prompt or len(history))


def test_nothing_is_guessed_behind_what_was_never_there() -> None:
    assert lookup([1, 2, 3, 4]).propose(8) == []
    assert lookup([1]).propose(8) == []


def test_a_run_that_stood_before_is_followed_by_what_followed_it_then() -> None:
    history = [1, 2, 3, 4, 5, 6, 9, 2, 3]
    assert lookup(history).propose(8) == [4, 5]
    assert lookup(history).propose(1) == [4]


def test_the_longest_run_decides_and_of_equals_the_latest() -> None:
    assert lookup([1, 2, 3, 7, 0, 2, 3, 8, 0, 1, 2, 3]).propose(1) == [7]
    assert lookup([2, 3, 7, 0, 2, 3, 8, 0, 9, 2, 3]).propose(1) == [8]


def test_the_longer_a_guess_was_right_the_more_is_guessed() -> None:
    text = list(range(100, 140))
    history = [*text, 1, 100, 101]
    drafter = lookup(history, max_tokens=16)
    lengths = []
    while len(history) < 70:
        guess = drafter.propose(16)
        lengths.append(len(guess))
        history += [*guess, text[history[-1] - 100 + len(guess) + 1]]
    assert lengths == [2, 5, 11, 16]


def test_a_wrong_guess_ends_it_until_tokens_match_again() -> None:
    history = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2]
    drafter = lookup(history)
    assert drafter.propose(8) == [3, 4]
    history += [3, 9]
    assert drafter.propose(8) == []
    history += [5, 6]
    assert drafter.propose(8) == [7, 8]


def test_what_repeats_itself_is_guessed_to_go_on_so() -> None:
    history = [5, 6, 7] * 4
    drafter = lookup(history)
    for _ in range(3):
        guess = drafter.propose(8)
        assert guess == ([5, 6, 7] * 4)[: len(guess)]
        history += [5, 6, 7]
    assert len(guess) == 8


def test_tokens_not_known_yet_are_guessed_and_left_out() -> None:
    history = [1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3]
    assert lookup(history).propose(2, num_unknown=1) == [5, 6]


def test_an_answer_is_taken_to_begin_as_its_reference_does() -> None:
    assert lookup([1, 2], reference=[10, 11, 12, 13]).propose(3) == [10, 11, 12]


def test_a_reference_is_found_again_behind_a_change_further_on_not_further_back() -> None:
    reference = [10, 11, 12, 20, 10, 11, 13, 21, 10, 11, 14]
    history = [1]
    drafter = lookup(history, reference=reference)
    assert drafter.propose(3) == [10, 11, 12]
    history += [10, 11, 12, 99]
    assert drafter.propose(3) == []
    history += [10, 11]
    assert drafter.propose(1) == [13]


def test_behind_the_end_of_a_reference_nothing_is_guessed_from_it() -> None:
    history = [1]
    drafter = lookup(history, reference=[10, 11])
    drafter.propose(8)
    history += [10, 11]
    assert drafter.propose(8) == []


def test_guesses_are_the_same_however_often_they_are_asked_for() -> None:
    rng = random.Random(0)
    text = [rng.randrange(5) for _ in range(300)]
    history: list[int] = []
    steady = lookup(history, num_prompt=0)
    for at, token_id in enumerate(text):
        history.append(token_id)
        guess = steady.propose(4)
        assert guess == [] or at > 1
        assert all(0 <= one < 5 for one in guess)
    late = lookup(history)
    assert steady.propose(1)[:1] == late.propose(1)[:1]


def test_no_more_is_guessed_than_is_likely_to_be_right() -> None:
    history = [*range(100, 140), 1, 100, 101, 102]
    drafter = lookup(history, max_tokens=32)
    assert drafter.propose(32, least=0.3) == [103, 104]
    history += range(103, 115)
    assert [len(drafter.propose(32, least=least)) for least in (0.0, 0.3, 0.9, 0.99)] == [15, 15, 3, 0]


def test_guesses_that_were_wrong_make_the_next_ones_short_and_rare() -> None:
    history = [5, 6, 7, 8, 9, 10, 5, 6, 7]
    drafter = lookup(history, num_prompt=9, max_tokens=4)
    assert drafter.propose(4, least=0.2) == [8, 9, 10]
    for _ in range(6):
        history += [400 + len(history), 5, 6, 7]
        drafter.propose(4, least=0.2)
    assert drafter.propose(4, least=0.2) == []
    assert drafter.propose(4) != []
