"""A workload is the same for the same seed and stays within what was asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.workload import FIRST_ID, LAST_ID, Lengths, Workload


def workload(*, seed: int = 0, rate: float | None = None, num_requests: int = 50, shared_prefix: int = 0) -> Workload:
    return Workload(
        num_requests=num_requests,
        prompt=Lengths.parse("4:40"),
        output=Lengths.parse("1:9"),
        rate=rate,
        shared_prefix=shared_prefix,
        seed=seed,
    )


def test_the_same_seed_gives_the_same_requests() -> None:
    assert list(workload(seed=7, rate=3.0).requests()) == list(workload(seed=7, rate=3.0).requests())


def test_another_seed_gives_other_requests() -> None:
    assert list(workload(seed=7).requests()) != list(workload(seed=8).requests())


@given(seed=st.integers(0, 2**32), rate=st.none() | st.floats(0.1, 1000))
def test_lengths_and_ids_stay_within_their_ranges(seed: int, rate: float | None) -> None:
    for request in workload(seed=seed, rate=rate, num_requests=20).requests():
        assert 4 <= len(request.prompt_ids) <= 40
        assert 1 <= request.max_tokens <= 9
        assert all(FIRST_ID <= token < LAST_ID for token in request.prompt_ids)


def test_an_open_loop_arrives_in_order_at_about_the_asked_rate() -> None:
    arrivals = [request.arrival_s for request in workload(rate=5.0, num_requests=2000).requests()]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(400, rel=0.1)


def test_a_closed_loop_has_no_arrival_times() -> None:
    assert {request.arrival_s for request in workload().requests()} == {0.0}


def test_a_shared_prefix_begins_every_prompt_and_nothing_else_is_shared() -> None:
    first, second, *_ = workload(shared_prefix=12).requests()
    assert first.prompt_ids[:12] == second.prompt_ids[:12]
    assert first.prompt_ids[12:16] != second.prompt_ids[12:16]


@pytest.mark.parametrize("text", ["0", "5:4", "", "a:b", "-3"])
def test_lengths_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"lengths|invalid literal"):
        Lengths.parse(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        workload(rate=rate)
