"""What a step leaves on the device, and its way to the host.

`fetch` runs in the device's thread and does no more than copy numbers, so that the next step starts soon; what lanes
make of those numbers is `lane_results`, for whoever waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engine.request import Distribution, Probes, TokenLogprob
from engine.runner.inputs import StagedStep
from engine.runner.pooling import Sums
from engine.runner.verifying import Wave
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
        further: Tokens behind guesses that were right: by depth, then by lane, with log-probabilities if one asked.
        probes: By place in the batch, what programs noted down.
        rows: By place in the batch, distributions behind rows of a pass.
    """

    token_ids: list[int]
    logprobs: LogprobRows | None
    prompts: Sequence[LogprobRows]
    pooled: Sums
    distributions: Mapping[int, Distribution]
    probes: Mapping[int, Probes]
    rows: Mapping[int, Sequence[Distribution]]
    further: Sequence[tuple[Sequence[int], list[int], LogprobRows | None]] = ()


def fetch(
    sampled: SampledTokens | None,
    prompts: Sequence[Logprobs],
    pooled: Sums,
    distributions: Mapping[int, Distribution],
    probes: Mapping[int, Probes],
    rows: Mapping[int, Sequence[Distribution]],
    waves: Sequence[Wave] = (),
) -> StepResults:
    """Copies a step's outcome to the host. Waits for the device.

    Args:
        sampled: Tokens drawn, if any lane samples.
        prompts: Log-probabilities for each of `StagedStep.prompt_readouts`.
        pooled, distributions, probes, rows: What is on the host already.
        waves: Tokens drawn behind guesses that were right.
    """
    found = [_fetch_rows(logprobs) for logprobs in prompts]
    if sampled is None:
        return StepResults([], None, found, pooled, distributions, probes, rows)
    logprobs = _fetch_any(sampled.logprobs)
    further = [(wave.places, wave.sampled.token_ids.tolist(), _fetch_any(wave.sampled.logprobs)) for wave in waves]
    return StepResults(sampled.token_ids.tolist(), logprobs, found, pooled, distributions, probes, rows, further)


def lane_results(staged: StagedStep, results: StepResults) -> list[LaneResult]:
    """One result a lane, in order."""
    sampling = staged.readouts.sampling
    is_plain = results.logprobs is None and not (
        results.prompts or results.distributions or results.further or results.probes or results.rows
    )
    if is_plain and len(sampling) == len(staged.batch.lanes):
        return [LaneResult(token_id) for token_id in results.token_ids]
    token_ids = dict(zip(sampling, results.token_ids, strict=True))
    logprobs: dict[int, TokenLogprob | None] = {}
    if results.logprobs is not None:
        logprobs = dict(zip(sampling, _entries(results.logprobs, _wanted(staged, sampling)), strict=True))
    further: dict[int, list[tuple[int, TokenLogprob | None]]] = {}
    for places, drawn, rows in results.further:
        entries = [None] * len(drawn) if rows is None else _entries(rows, _wanted(staged, places))
        for place, token_id, entry in zip(places, drawn, entries, strict=True):
            if token_id >= 0:  # else a program drew nothing, and will again where that ends its sequence
                further.setdefault(place, []).append((token_id, entry))
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
            further.get(place, ()),
            results.probes.get(place),
            results.rows.get(place, ()),
        )
        for place in range(len(staged.batch.lanes))
    ]


def _wanted(staged: StagedStep, places: Sequence[int]) -> list[int | None]:
    return [staged.batch.lanes[place].sequence.request.sampling.logprobs for place in places]


def _fetch_any(found: Logprobs | None) -> LogprobRows | None:
    return None if found is None else _fetch_rows(found)


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
