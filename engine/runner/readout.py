"""What a step leaves on the device, and its way to the host.

`fetch` runs in the device's thread and waits for nothing: on an accelerator it asks for copies, so that the next step
is started while this one still runs. Who wants the results waits for them, and makes of them what lanes are told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec
import torch
from msgspec.structs import replace

from engine.attention.scores import Scores
from engine.request import Distribution, Probes, TokenLogprob
from engine.runner.inputs import StagedStep
from engine.runner.pooling import Sums
from engine.runner.verifying import Wave
from engine.sampling.looks import WrittenLooks
from engine.sampling.sampler import Logprobs, SampledTokens
from engine.scheduling.batch import LaneResult


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """`Logprobs` on the host: R log-probabilities and ranks, R lists of alternatives."""

    chosen: list[float]
    rank: list[int]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]


class StepResults(msgspec.Struct, frozen=True, eq=False):
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
        attention: By place in the batch, what rows attend to.
    """

    token_ids: list[int]
    logprobs: LogprobRows | None
    prompts: Sequence[LogprobRows]
    pooled: Sums
    distributions: Mapping[int, Distribution]
    probes: Mapping[int, Probes]
    rows: Mapping[int, Sequence[Distribution]]
    further: Sequence[tuple[Sequence[int], list[int], LogprobRows | None]] = ()
    attention: Mapping[int, Sequence[Scores]] = {}


class StepOutcome(msgspec.Struct, kw_only=True, eq=False):
    """Outcome of one step, on its way to the host.

    Attributes:
        token_ids: [S] integers drawn; None if no lane samples.
        logprobs: Of those, if any lane asked.
        prompts: One for each of `StagedStep.prompt_readouts`.
        pooled, distributions, probes, rows, attention: See `StepResults`; they are on the host already.
        waves: Places in the batch, tokens drawn behind guesses that were right, and their log-probabilities.
        looks: Places in the batch, and their distributions, which are not on the host yet.
        arrival: Tells when the step has ended and all tensors have come; None if it has already.
    """

    token_ids: torch.Tensor | None
    logprobs: Logprobs | None
    prompts: Sequence[Logprobs]
    pooled: Sums
    distributions: dict[int, Distribution]
    probes: Mapping[int, Probes]
    rows: Mapping[int, Sequence[Distribution]]
    waves: Sequence[tuple[Sequence[int], torch.Tensor, Logprobs | None]]
    looks: tuple[Sequence[int], WrittenLooks] | None = None
    arrival: torch.cuda.Event | None = None
    attention: Mapping[int, Sequence[Scores]] = {}

    def wait(self) -> StepResults:
        """Waits for the tensors, and reads them."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return StepResults(
            token_ids=[] if self.token_ids is None else self.token_ids.tolist(),
            logprobs=_read(self.logprobs),
            prompts=[_read(found) for found in self.prompts],
            pooled=self.pooled,
            distributions=self.distributions if self.looks is None else self.distributions | _seen(*self.looks),
            probes=self.probes,
            rows=self.rows,
            further=[(places, tokens.tolist(), _read(found)) for places, tokens, found in self.waves],
            attention=self.attention,
        )


def fetch(
    device: torch.device,
    sampled: SampledTokens | None,
    *,
    prompts: Sequence[Logprobs] = (),
    pooled: Sums | None = None,
    distributions: dict[int, Distribution] | None = None,
    looks: tuple[Sequence[int], WrittenLooks] | None = None,
    probes: Mapping[int, Probes] | None = None,
    rows: Mapping[int, Sequence[Distribution]] | None = None,
    waves: Sequence[Wave] = (),
    attention: Mapping[int, Sequence[Scores]] | None = None,
) -> StepOutcome:
    """Asks for a step's outcome on the host.

    Args:
        device: Where it was computed.
        sampled: Tokens drawn, if any lane samples.
        prompts: Log-probabilities for each of `StagedStep.prompt_readouts`.
        pooled, distributions, probes, rows, attention: What is on the host already.
        looks: Places in the batch, and what the device wrote down of their distributions.
        waves: Tokens drawn behind guesses that were right.
    """
    outcome = StepOutcome(
        token_ids=None if sampled is None else to_host(sampled.token_ids),
        logprobs=None if sampled is None else _to_host(sampled.logprobs),
        prompts=[_to_host(found) for found in prompts],
        pooled=pooled or {},
        distributions=distributions or {},
        probes=probes or {},
        rows=rows or {},
        waves=[(wave.places, to_host(wave.sampled.token_ids), _to_host(wave.sampled.logprobs)) for wave in waves],
        looks=None if looks is None else (looks[0], replace(looks[1], rows=to_host(looks[1].rows))),
        attention=attention or {},
    )
    if device.type == "cuda":
        outcome.arrival = torch.cuda.current_stream(device).record_event()
    return outcome


def to_host(values: torch.Tensor) -> torch.Tensor:
    """Asks for a copy in memory that the host reads and the device writes; on a CPU the tensor is there already."""
    if values.device.type == "cpu":
        return values
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)


def _seen(places: Sequence[int], looks: WrittenLooks) -> dict[int, Distribution]:
    return dict(zip(places, looks.read(), strict=True))


@overload
def _to_host(found: Logprobs) -> Logprobs: ...
@overload
def _to_host(found: None) -> None: ...
def _to_host(found: Logprobs | None) -> Logprobs | None:
    if found is None:
        return None
    return Logprobs(*(to_host(part) for part in (found.chosen, found.rank, found.top_ids, found.top_logprobs)))


def lane_results(staged: StagedStep, results: StepResults) -> list[LaneResult]:
    """One result a lane, in order."""
    sampling = staged.readouts.sampling
    is_plain = (
        results.logprobs is None
        and not (results.prompts or results.distributions or results.further or results.probes or results.rows)
        and not results.attention
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
            results.attention.get(place, ()),
        )
        for place in range(len(staged.batch.lanes))
    ]


def _wanted(staged: StagedStep, places: Sequence[int]) -> list[int | None]:
    return [staged.batch.lanes[place].sequence.request.sampling.logprobs for place in places]


@overload
def _read(found: Logprobs) -> LogprobRows: ...
@overload
def _read(found: None) -> None: ...
def _read(found: Logprobs | None) -> LogprobRows | None:
    if found is None:
        return None
    return LogprobRows(found.chosen.tolist(), found.rank.tolist(), found.top_ids.tolist(), found.top_logprobs.tolist())


def _entries(rows: LogprobRows, num_top: Sequence[int | None]) -> list[TokenLogprob | None]:
    """One entry a row, with as many alternatives as that row asked for; None where it asked for nothing."""
    return [
        None
        if count is None
        else TokenLogprob(rows.chosen[row], rows.top_ids[row][:count], rows.top_logprobs[row][:count], rows.rank[row])
        for row, count in enumerate(num_top)
    ]
