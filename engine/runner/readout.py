"""What a step leaves on the device, and its way to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.request import TokenLogprob
from engine.runner.inputs import PromptReadout, StagedStep
from engine.sampling.sampler import Logprobs, SampledTokens
from engine.scheduling.batch import LaneResult


@dataclass(frozen=True, slots=True)
class DeviceResults:
    """Outcome of one step, on the device.

    Attributes:
        sampled: Tokens drawn, if any lane samples.
        prompts: Log-probabilities for each `StagedStep.prompt_readouts`.
    """

    sampled: SampledTokens | None
    prompts: Sequence[Logprobs]


def to_host(staged: StagedStep, results: DeviceResults) -> list[LaneResult]:
    """One result a lane, in order. Waits for the device."""
    token_ids: dict[int, int] = {}
    logprobs: dict[int, TokenLogprob] = {}
    if results.sampled is not None:
        token_ids = dict(zip(staged.sampling, results.sampled.token_ids.tolist(), strict=True))
        if results.sampled.logprobs is not None:
            wanted = [staged.batch.lanes[place].sequence.request.sampling.logprobs for place in staged.sampling]
            rows = _rows(results.sampled.logprobs, wanted)
            logprobs = {place: row for place, row in zip(staged.sampling, rows, strict=True) if row is not None}
    prompts = {
        readout.lane: _prompt_rows(readout, found)
        for readout, found in zip(staged.prompt_readouts, results.prompts, strict=True)
    }
    return [
        LaneResult(token_ids.get(place), logprobs.get(place), prompts.get(place, ()))
        for place in range(len(staged.batch.lanes))
    ]


def _prompt_rows(readout: PromptReadout, found: Logprobs) -> list[TokenLogprob]:
    rows = _rows(found, [readout.num_top] * len(readout.targets))
    return [row for row in rows if row is not None]


def _rows(found: Logprobs, num_top: Sequence[int | None]) -> list[TokenLogprob | None]:
    """One entry a row, with as many alternatives as that row asked for; None where it asked for nothing."""
    chosen, rank = _list(found.chosen), _list(found.rank)
    top_ids, top_logprobs = found.top_ids.tolist(), found.top_logprobs.tolist()
    return [
        None
        if count is None
        else TokenLogprob(chosen[row], top_ids[row][:count], top_logprobs[row][:count], int(rank[row]))
        for row, count in enumerate(num_top)
    ]


def _list(values: torch.Tensor) -> list[float]:
    found: list[float] = values.tolist()
    return found
