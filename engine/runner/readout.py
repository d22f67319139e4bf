"""What a step leaves on the device, and its way to the host.

`fetch` runs in the device's thread and does no more than copy numbers, so that the next step starts soon; what lanes
make of those numbers is `lane_results`, for whoever waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engine.request import Distribution, TokenLogprob
from engine.runner.inputs import StagedStep
from engine.runner.pooling import Sums
from engine.sampling.sampler import Logprobs, SampledTokens
from engine.scheduling.batch import LaneResult


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """`Logprobs` on the host: R log-probabilities and ranks, R lists of alternatives."""

    chosen: list[float]
    rank: list[int]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]


class StepResults(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Outcome of one step, on the host.

    Attributes:
        token_ids: One a lane that samples.
        logprobs: Of those, if any lane asked.
        prompts: One for each of `StagedStep.prompt_readouts`.
        pooled: Sums of the hidden states wanted.
        distributions: By place in the batch, of lanes that asked.
    """

    token_ids: list[int]
    logprobs: LogprobRows | None
    prompts: Sequence[LogprobRows]
    pooled: Sums
    distributions: Mapping[int, Distribution]


def fetch(
    sampled: SampledTokens | None,
    prompts: Sequence[Logprobs],
    pooled: Sums,
    distributions: Mapping[int, Distribution],
) -> StepResults:
    """Copies a step's outcome to the host. Waits for the device.

    Args:
        sampled: Tokens drawn, if any lane samples.
        prompts: Log-probabilities for each of `StagedStep.prompt_readouts`.
        pooled, distributions: What is on the host already.
    """
    found = [_fetch_rows(logprobs) for logprobs in prompts]
    if sampled is None:
        return StepResults([], None, found, pooled, distributions)
    logprobs = None if sampled.logprobs is None else _fetch_rows(sampled.logprobs)
    return StepResults(sampled.token_ids.tolist(), logprobs, found, pooled, distributions)


def lane_results(staged: StagedStep, results: StepResults) -> list[LaneResult]:
    """One result a lane, in order."""
    sampling = staged.readouts.sampling
    is_plain = results.logprobs is None and not results.prompts and not results.distributions
    if is_plain and len(sampling) == len(staged.batch.lanes):
        return [LaneResult(token_id) for token_id in results.token_ids]
    token_ids = dict(zip(sampling, results.token_ids, strict=True))
    logprobs: dict[int, TokenLogprob | None] = {}
    if results.logprobs is not None:
        wanted = [staged.batch.lanes[place].sequence.request.sampling.logprobs for place in sampling]
        logprobs = dict(zip(sampling, _entries(results.logprobs, wanted), strict=True))
    prompts: dict[int, list[TokenLogprob]] = {}
    for readout, rows in zip(staged.prompt_readouts, results.prompts, strict=True):
        entries = _entries(rows, [readout.num_top] * len(readout.targets))
        prompts[readout.lane] = [entry for entry in entries if entry is not None]
    return [
        LaneResult(
            token_ids.get(place),
            logprobs.get(place),
            prompts.get(place, ()),
            results.pooled.get(place),
            results.distributions.get(place),
        )
        for place in range(len(staged.batch.lanes))
    ]


def _fetch_rows(found: Logprobs) -> LogprobRows:
    return LogprobRows(found.chosen.tolist(), found.rank.tolist(), found.top_ids.tolist(), found.top_logprobs.tolist())


def _entries(rows: LogprobRows, num_top: Sequence[int | None]) -> list[TokenLogprob | None]:
    """One entry a row, with as many alternatives as that row asked for; None where it asked for nothing."""
    return [
        None
        if count is None
        else TokenLogprob(rows.chosen[row], rows.top_ids[row][:count], rows.top_logprobs[row][:count], rows.rank[row])
        for row, count in enumerate(num_top)
    ]
