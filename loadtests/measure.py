"""From stamped tokens to numbers: TTFT, TPOT, E2E, goodput. A failed request counts as one that never answers.

TTFT: time to first token. TPOT: time per output token after the first. E2E: from due time to last token.
Goodput: requests per second that met the service-level objective (SLO).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtests.tables import Table


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What happened to one request; times are `time.perf_counter` values.

    Attributes:
        num_prompt_tokens: Tokens sent.
        started_at: When it was due.
        asked_tokens: Tokens asked for.
        token_times: When each event with text (or the end) arrived.
        num_output_tokens: Tokens the server says it generated.
        ended_at: Last token, or the failure.
        error: Why it failed, or None.
    """

    num_prompt_tokens: int
    started_at: float
    asked_tokens: int
    token_times: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    ended_at: float = 0.0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token; infinite for a failure."""
        return math.inf if self.error else self.token_times[0] - self.started_at

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first; infinite for a failure, 0 for a single token."""
        if self.error:
            return math.inf
        return (self.token_times[-1] - self.token_times[0]) / max(1, self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Seconds to the last token; infinite for a failure."""
        return math.inf if self.error else self.token_times[-1] - self.started_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Slo:
    """What a request must keep to count as good; None does not matter.

    Attributes:
        ttft_ms: Most milliseconds to the first token.
        tpot_ms: Most mean milliseconds per further token.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def is_met_by(self, outcome: Outcome) -> bool:
        """True if the request succeeded within the limits."""
        if outcome.error:
            return False
        in_time = self.ttft_ms is None or outcome.ttft_s * 1000 <= self.ttft_ms
        return in_time and (self.tpot_ms is None or outcome.tpot_s * 1000 <= self.tpot_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Percentiles:
    """Of one latency, in milliseconds; infinite where so many requests failed."""

    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """From values in seconds."""
        return cls(**{f"p{q}": percentile(seconds, q) * 1000 for q in (50, 90, 99)}, max=max(seconds) * 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A run in numbers.

    Attributes:
        num_requests, num_failed: Counts.
        errors: How often each failure occurred.
        duration_s: From the first due time to the last end.
        prompt_tokens_per_s, output_tokens_per_s, requests_per_s: Of successful requests, over the whole run.
        goodput_per_s: Requests per second that met the SLO.
        good_share: Share of all requests that met it.
        ttft, tpot, e2e: Percentiles over all requests.
    """

    num_requests: int
    num_failed: int
    errors: dict[str, int]
    duration_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    good_share: float
    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles

    def to_json(self) -> dict[str, Any]:
        """JSON values; an infinite percentile becomes null."""
        values = asdict(self)
        for name in ("ttft", "tpot", "e2e"):
            values[f"{name}_ms"] = {k: v if math.isfinite(v) else None for k, v in values.pop(name).items()}
        return values


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile, 0..100, interpolated between neighbours; infinite if it falls among infinite values.

    Raises:
        ValueError: No values, or q out of range.
    """
    if not values or not 0 <= q <= 100:
        raise ValueError(f"percentile {q} of {len(values)} values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    if low == high or math.isinf(high):
        return high
    return low + (high - low) * (place - math.floor(place))


def shared_decode_rate(outcomes: Sequence[Outcome]) -> float | None:
    """Tokens per second while all streams decode: after the last first token, before the first end.

    None if there is no such time: the answers were too short. Tokens that share an event count with it.

    Raises:
        ValueError: There are no outcomes, or one is a failure.
    """
    if not outcomes or any(outcome.error for outcome in outcomes):
        raise ValueError("only streams that all succeeded share a decode rate")
    start = max(outcome.token_times[0] for outcome in outcomes)
    end = min(outcome.token_times[-1] for outcome in outcomes)
    if end <= start:
        return None
    num_tokens = 0.0
    for outcome in outcomes:
        num_events = sum(start < at <= end for at in outcome.token_times)
        num_tokens += num_events * outcome.num_output_tokens / len(outcome.token_times)
    return num_tokens / (end - start)


def summarize(outcomes: Sequence[Outcome], slo: Slo) -> Summary:
    """Numbers of a run.

    Raises:
        ValueError: There are no outcomes.
    """
    if not outcomes:
        raise ValueError("no outcomes to summarize")
    succeeded = [outcome for outcome in outcomes if not outcome.error]
    duration_s = max(outcome.ended_at for outcome in outcomes) - min(outcome.started_at for outcome in outcomes)
    num_good = sum(slo.is_met_by(outcome) for outcome in outcomes)
    return Summary(
        num_requests=len(outcomes),
        num_failed=len(outcomes) - len(succeeded),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common(10)),
        duration_s=duration_s,
        prompt_tokens_per_s=sum(outcome.num_prompt_tokens for outcome in succeeded) / duration_s,
        output_tokens_per_s=sum(outcome.num_output_tokens for outcome in succeeded) / duration_s,
        requests_per_s=len(succeeded) / duration_s,
        goodput_per_s=num_good / duration_s,
        good_share=num_good / len(outcomes),
        ttft=Percentiles.of([outcome.ttft_s for outcome in outcomes]),
        tpot=Percentiles.of([outcome.tpot_s for outcome in outcomes]),
        e2e=Percentiles.of([outcome.e2e_s for outcome in outcomes]),
    )


def latency_table(summary: Summary, title: str) -> Table:
    """Percentiles of one run."""
    table = Table(title=title, headers=["latency, ms", "p50", "p90", "p99", "max"])
    for label, row in (("TTFT", summary.ttft), ("TPOT", summary.tpot), ("E2E", summary.e2e)):
        table.add(label, row.p50, row.p90, row.p99, row.max)
    return table


def throughput_table(summary: Summary) -> Table:
    """Rates and failures of one run."""
    table = Table(title="Throughput", headers=["what", "value"])
    table.add("requests", summary.num_requests)
    table.add("failed", summary.num_failed)
    table.add("duration, s", summary.duration_s)
    table.add("requests/s", summary.requests_per_s)
    table.add("prompt tokens/s", summary.prompt_tokens_per_s)
    table.add("output tokens/s", summary.output_tokens_per_s)
    table.add("goodput, requests/s", summary.goodput_per_s)
    table.add("within the SLO, %", summary.good_share * 100)
    for error, count in summary.errors.items():
        table.add(f"failure: {error}", count)
    return table
