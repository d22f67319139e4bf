"""A batch of lanes as flat tensors: the host's last word before the device takes over.

Letters: T tokens of the step, F lanes fed back, S lanes that sample, R rows read out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.backend import LaneLayout
from engine.sampling.sampler import SampleLane
from engine.scheduling.batch import Batch, Lane

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptReadout:
    """Prompt positions of one lane whose next token's log-probability is wanted.

    Attributes:
        lane: Its place in the batch.
        first, last: Its rows among those read out, last excluded.
        targets: The prompt tokens that follow those positions.
        num_top: Alternatives to report.
    """

    lane: int
    first: int
    last: int
    targets: list[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class StagedStep:
    """One step, ready to run; nothing in it changes when the host goes on scheduling.

    Attributes:
        batch: What it was made from; only its row lists and copies are read later.
        token_ids: [T] int64; rows that are fed back hold 0.
        positions: [T] int64.
        layout: Lanes' places.
        fed_rows: [F] int64, places in `token_ids` to fill, or None.
        fed_states: [F] int64, rows of device state to fill them from.
        readout_rows: [R] int64, places in the step whose logits are wanted.
        sample_rows: [S] int64, places among the R rows that are sampled from.
        sample_lanes: Who samples, S of them.
        sampling: Places in the batch of the S lanes.
        prompt_readouts: Prompt log-probabilities wanted.
    """

    batch: Batch
    token_ids: torch.Tensor
    positions: torch.Tensor
    layout: LaneLayout
    fed_rows: torch.Tensor | None
    fed_states: torch.Tensor | None
    readout_rows: torch.Tensor
    sample_rows: torch.Tensor
    sample_lanes: list[SampleLane]
    sampling: list[int]
    prompt_readouts: list[PromptReadout]


class InputStager:
    """Turns batches into tensors on one device."""

    def __init__(self, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device

    def stage(self, batch: Batch) -> StagedStep:
        """Reads everything the step needs from the host's objects."""
        token_ids: list[int] = []
        query_starts = [0]
        positions, slots = [], []
        fed_rows, fed_states = [], []
        readout_rows: list[int] = []
        sample_rows, sample_lanes, sampling = [], [], []
        prompt_readouts = []
        for place, lane in enumerate(batch.lanes):
            first = query_starts[-1]
            span = np.arange(lane.start, lane.stop, dtype=np.int64)
            positions.append(span)
            slots.append(self._slots(lane, span))
            if lane.feeds_back:
                fed_rows.append(first)
                fed_states.append(lane.row)
                token_ids.append(0)
            else:
                token_ids.extend(lane.sequence.token_ids[lane.start : lane.stop])
            if lane.reads_prompt:
                prompt_readouts.append(_prompt_readout(place, lane, first, readout_rows))
            if lane.samples:
                sampling.append(place)
                sample_rows.append(len(readout_rows))
                readout_rows.append(first + lane.num_tokens - 1)
                sample_lanes.append(
                    SampleLane(row=lane.row, position=lane.stop, num_output=lane.stop - lane.sequence.num_prompt)
                )
            query_starts.append(first + lane.num_tokens)
        return StagedStep(
            batch=batch,
            token_ids=self._tensor(token_ids),
            positions=self._tensor(np.concatenate(positions)),
            layout=LaneLayout(
                query_starts=query_starts,
                context_lens=[lane.stop for lane in batch.lanes],
                block_tables=[lane.pages for lane in batch.lanes],
                slots=self._tensor(np.concatenate(slots)),
            ),
            fed_rows=self._tensor(fed_rows) if fed_rows else None,
            fed_states=self._tensor(fed_states) if fed_rows else None,
            readout_rows=self._tensor(readout_rows),
            sample_rows=self._tensor(sample_rows),
            sample_lanes=sample_lanes,
            sampling=sampling,
            prompt_readouts=prompt_readouts,
        )

    def _slots(self, lane: Lane, span: Indices) -> Indices:
        size = self._page_size
        if lane.num_tokens == 1:
            return np.array([lane.pages[lane.start // size] * size + lane.start % size], dtype=np.int64)
        pages = np.asarray(lane.pages, dtype=np.int64)
        return pages[span // size] * size + span % size

    def _tensor(self, values: list[int] | Indices) -> torch.Tensor:
        host = torch.as_tensor(values, dtype=torch.int64)
        return host if self._device.type == "cpu" else host.pin_memory().to(self._device, non_blocking=True)


def _prompt_readout(place: int, lane: Lane, first: int, readout_rows: list[int]) -> PromptReadout:
    """Adds the lane's prompt rows to `readout_rows`."""
    sequence = lane.sequence
    stop = min(lane.stop, sequence.num_prompt - 1)
    begin = len(readout_rows)
    readout_rows.extend(range(first, first + stop - lane.start))
    return PromptReadout(
        lane=place,
        first=begin,
        last=len(readout_rows),
        targets=sequence.token_ids[lane.start + 1 : stop + 1],
        num_top=sequence.request.prompt_logprobs or 0,
    )
