"""Numbers drawn from stamped tokens, with failures counted against the result."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.measure import (
    Outcome,
    Slo,
    latency_table,
    percentile,
    shared_decode_rate,
    summarize,
    throughput_table,
)


def outcome(*times: float, started_at: float = 10.0, num_output_tokens: int | None = None) -> Outcome:
    return Outcome(
        num_prompt_tokens=8,
        started_at=started_at,
        asked_tokens=len(times),
        token_times=list(times),
        num_output_tokens=len(times) if num_output_tokens is None else num_output_tokens,
        ended_at=times[-1],
    )


def failure() -> Outcome:
    return Outcome(num_prompt_tokens=8, started_at=10.0, asked_tokens=4, ended_at=12.0, error="refused")


def test_latencies_count_from_the_due_time() -> None:
    measured = outcome(10.5, 10.6, 10.7)
    assert measured.ttft_s == pytest.approx(0.5)
    assert measured.tpot_s == pytest.approx(0.1)
    assert measured.e2e_s == pytest.approx(0.7)


def test_tokens_that_share_an_event_still_divide_the_time() -> None:
    assert outcome(11.0, 12.0, num_output_tokens=5).tpot_s == pytest.approx(0.25)


def test_percentiles_interpolate() -> None:
    assert percentile([1, 2, 3, 4, 5], 50) == 3
    assert percentile([1, 2], 50) == 1.5
    assert percentile([4], 99) == 4


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_lies_between_the_extremes(values: list[float], q: float) -> None:
    assert min(values) <= percentile(values, q) <= max(values)


@pytest.mark.parametrize(("values", "q"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_percentiles_of_nothing_or_out_of_range_are_refused(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, q)


def test_a_failure_makes_the_high_percentiles_infinite_and_is_not_good() -> None:
    summary = summarize([outcome(10.1, 10.2), outcome(10.1, 10.2), failure()], Slo())
    assert summary.num_failed == 1
    assert summary.errors == {"refused": 1}
    assert math.isinf(summary.ttft.p99)
    assert math.isinf(summary.ttft.max)
    assert summary.ttft.p50 == pytest.approx(100)
    assert summary.good_share == pytest.approx(2 / 3)
    assert summary.to_json()["ttft_ms"]["p99"] is None


def test_rates_are_over_the_whole_run() -> None:
    summary = summarize([outcome(11.0, 12.0), outcome(13.0, 14.0, started_at=12.0)], Slo())
    assert summary.duration_s == pytest.approx(4)
    assert summary.output_tokens_per_s == pytest.approx(1)
    assert summary.prompt_tokens_per_s == pytest.approx(4)
    assert summary.requests_per_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(), 2),
        (Slo(ttft_ms=600), 1),
        (Slo(tpot_ms=150), 1),
        (Slo(ttft_ms=600, tpot_ms=150), 0),
    ],
)
def test_goodput_counts_requests_within_every_limit(slo: Slo, good: int) -> None:
    late_but_smooth = outcome(11.0, 11.1, 11.2)
    early_but_slow = outcome(10.5, 10.8, 11.1)
    summary = summarize([late_but_smooth, early_but_slow], slo)
    assert summary.good_share == good / 2


def test_a_run_without_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="no outcomes"):
        summarize([], Slo())


def test_tables_show_failures() -> None:
    summary = summarize([outcome(10.1, 10.2), failure()], Slo())
    assert "failed" in latency_table(summary, "two").text()
    assert "failure: refused" in throughput_table(summary).text()


def test_streams_share_a_rate_only_while_all_of_them_decode() -> None:
    streams = [outcome(1.0, 2.0, 3.0, 4.0), outcome(2.0, 3.0, 4.0, 5.0)]
    assert shared_decode_rate(streams) == pytest.approx(2.0)
    assert shared_decode_rate([outcome(1.0, 2.0), outcome(3.0, 4.0)]) is None


def test_tokens_that_came_together_count_each() -> None:
    assert shared_decode_rate([outcome(1.0, 2.0, 3.0, num_output_tokens=9)]) == pytest.approx(3.0)


@pytest.mark.parametrize("outcomes", [[], [outcome(1.0, 2.0), failure()]])
def test_failed_streams_share_no_rate(outcomes: list[Outcome]) -> None:
    with pytest.raises(ValueError, match="all succeeded"):
        shared_decode_rate(outcomes)
