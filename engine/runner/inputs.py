"""A batch of lanes as flat arrays: the host's last word before the device takes over.

Letters: T tokens of the step, L lanes, F lanes fed back, S lanes that sample, R rows read out.
Everything is laid out in numpy, a whole column at a time; on a CPU the tensors are views of those columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.attention.backend import LaneLayout
from engine.attention.tables import LaneTables, flatten
from engine.kv.manager import PageCopy
from engine.kv.storage import KVStorage
from engine.models.step import HiddenReadout, StepInputs
from engine.runner.decoding import DecodeStep, StagedDecode, only_decodes
from engine.runner.pooling import PooledRows, pooled_rows, row_indices
from engine.runner.readout_rows import PromptReadout, ReadoutRows, readout_rows
from engine.sampling.sampler import SampleLane
from engine.scheduling.batch import Batch, Lane

Indices = npt.NDArray[np.int64]


class FedTokens(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Tokens that the step before drew and that the host does not know yet: arrays on a CPU, else tensors.

    Attributes:
        token_ids: [T], the step's own.
        places: F rows of the step.
        last_tokens: [rows], what each row of device state drew last.
        rows: F rows of device state.
    """

    token_ids: Indices | torch.Tensor
    places: Indices | torch.Tensor
    last_tokens: Indices | torch.Tensor
    rows: Indices | torch.Tensor

    def fill(self) -> None:
        """Copies them to their places. On a CPU numpy does it: torch would let another thread have the interpreter."""
        self.token_ids[self.places] = self.last_tokens[self.rows]  # type: ignore[assignment]  # both arrays or both tensors


class StagedStep(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One step, ready to run; nothing in it changes when the host goes on scheduling.

    Attributes:
        batch: What it was made from; only its row lists are read in the device's thread.
        copies: Pages to copy before anything else.
        inputs: For the model; token ids that are fed back are still missing. None where `decode` has all.
        fed: Those, or None.
        readouts: Which rows sample, and which are prompt positions asked about.
        sample_rows: [S] int64, places among the R rows that are sampled from; None if all are, in order.
        sample_lanes: Who samples, S of them.
        pooled: Whose hidden states are wanted.
        decode: What the device's own way of decoding wants instead of `inputs`, if it takes the step.
    """

    batch: Batch
    copies: Sequence[PageCopy]
    inputs: StepInputs | None
    fed: FedTokens | None
    readouts: ReadoutRows
    sample_rows: torch.Tensor | None
    sample_lanes: list[SampleLane]
    pooled: Sequence[PooledRows] = ()
    decode: StagedDecode | None = None

    @property
    def prompt_readouts(self) -> Sequence[PromptReadout]:
        """Prompt log-probabilities wanted."""
        return self.readouts.prompts


class InputStager:
    """Turns batches into the inputs of steps.

    Args:
        storage: K and V.
        last_tokens: [rows] int64, what each row of device state drew last.
        hidden_size: Width of the model's hidden states.
        decode: Stages decoding lanes itself, if the device has a way of its own for them.
    """

    def __init__(
        self, storage: KVStorage, last_tokens: torch.Tensor, hidden_size: int, decode: DecodeStep | None = None
    ) -> None:
        self._decode = decode
        self._storage = storage
        self._hidden_size = hidden_size
        self._device = storage.device
        self._last_tokens = last_tokens.numpy() if self._device.type == "cpu" else last_tokens

    def stage(self, batch: Batch) -> StagedStep:
        """Reads everything the step needs from the host's objects."""
        if self._decode is not None and only_decodes(batch):
            decode = self._decode.stage(batch.lanes)
            if decode is not None:
                return _staged_decode(batch, decode)
        lanes, num_tokens = batch.lanes, batch.num_tokens
        counts = [lane.num_tokens for lane in lanes]
        query_starts = list(accumulate(counts, initial=0))
        context_lens = [lane.start + lane.num_tokens for lane in lanes]
        if batch.num_edited:
            context_lens = [length - lane.offset for length, lane in zip(context_lens, lanes, strict=True)]
        block_tables = [lane.pages for lane in lanes]
        tables = flatten(query_starts, context_lens, block_tables)
        if num_tokens == len(lanes) and not batch.num_edited:
            positions, slots = _single_tokens(lanes, self._storage.page_size)
        else:
            positions, slots = _spans(lanes, tables, self._storage.page_size)
            for first, lane in zip(query_starts, lanes, strict=False):
                if lane.positions is not None:
                    positions[first : first + lane.num_tokens] = lane.positions
        readouts = readout_rows(lanes, query_starts)
        pooled = pooled_rows(lanes, query_starts)
        known_ids = _known_ids(lanes, num_tokens)
        token_ids = self._tensor(known_ids)
        inputs = StepInputs(
            token_ids=token_ids,
            positions=self._tensor(positions),
            layout=LaneLayout(
                query_starts=query_starts,
                context_lens=context_lens,
                block_tables=block_tables,
                slots=self._tensor(slots),
                flat=tables,
                masks=[None if lane.mask is None else self._mask(lane.mask) for lane in lanes]
                if batch.num_edited
                else (),
            ),
            storage=self._storage,
            readout_rows=self._tensor(np.array(readouts.rows, dtype=np.int64)),
            hidden=self._hidden(pooled) if pooled else None,
            adapters=[lane.adapter for lane in lanes] if batch.num_adapted else (),
        )
        return StagedStep(
            batch=batch,
            copies=batch.copies,
            inputs=inputs,
            fed=self._fed(lanes, query_starts, known_ids, token_ids),
            readouts=readouts,
            sample_rows=None if readouts.is_plain else self._tensor(np.array(readouts.sample_rows, dtype=np.int64)),
            sample_lanes=[_sample_lane(lanes[place]) for place in readouts.sampling],
            pooled=pooled,
        )

    def _hidden(self, pooled: Sequence[PooledRows]) -> HiddenReadout:
        """Rows whose hidden states are wanted, and room for those."""
        rows = self._tensor(row_indices(pooled))
        return HiddenReadout(rows, torch.empty((len(rows), self._hidden_size), device=self._device))

    def _fed(
        self, lanes: Sequence[Lane], query_starts: Sequence[int], known_ids: Indices, token_ids: torch.Tensor
    ) -> FedTokens | None:
        places = [first for first, lane in zip(query_starts, lanes, strict=False) if lane.feeds_back]
        if not places:
            return None
        rows = [lane.row for lane in lanes if lane.feeds_back]
        if self._device.type == "cpu":
            return FedTokens(known_ids, np.array(places), self._last_tokens, np.array(rows))
        return FedTokens(
            token_ids,
            _upload(np.array(places), self._device),
            self._last_tokens,
            _upload(np.array(rows), self._device),
        )

    def _mask(self, mask: npt.NDArray[np.bool_]) -> torch.Tensor:
        return torch.from_numpy(mask)

    def _tensor(self, values: Indices) -> torch.Tensor:
        return torch.from_numpy(values) if self._device.type == "cpu" else _upload(values, self._device)


def _staged_decode(batch: Batch, decode: StagedDecode) -> StagedStep:
    """A step of which the device's own way has all it needs."""
    places = range(len(batch.lanes))
    return StagedStep(
        batch=batch,
        copies=batch.copies,
        inputs=None,
        fed=None,
        readouts=ReadoutRows(places, places, places),
        sample_rows=None,
        sample_lanes=[_sample_lane(lane) for lane in batch.lanes],
        decode=decode,
    )


def _single_tokens(lanes: Sequence[Lane], page_size: int) -> tuple[Indices, Indices]:
    """Positions and slots [L] of lanes with a token each; for a few numbers plain Python is quicker than numpy."""
    starts = [lane.start for lane in lanes]
    slots = [lane.pages[lane.start // page_size] * page_size + lane.start % page_size for lane in lanes]
    return np.array(starts, dtype=np.int64), np.array(slots, dtype=np.int64)


def _spans(lanes: Sequence[Lane], tables: LaneTables, page_size: int) -> tuple[Indices, Indices]:
    """Positions and slots [T] of lanes of any length."""
    counts = [lane.num_tokens for lane in lanes]
    first_rows, first_pages = tables.query_starts[:-1], tables.table_starts[:-1]
    shifts = np.array([lane.start for lane in lanes], dtype=np.int64) - first_rows
    positions = np.arange(tables.query_starts[-1]) + np.repeat(shifts, counts)
    dropped = np.repeat(np.array([lane.offset for lane in lanes], dtype=np.int64), counts)
    pages, offsets = np.divmod(positions - dropped, page_size)
    return positions, tables.pages[np.repeat(first_pages, counts) + pages].astype(np.int64) * page_size + offsets


def _known_ids(lanes: Sequence[Lane], num_tokens: int) -> Indices:
    """[T], 0 where the token is fed back."""
    if num_tokens == len(lanes) and all(lane.feeds_back for lane in lanes):
        return np.zeros(num_tokens, dtype=np.int64)
    token_ids: list[int] = []
    for lane in lanes:
        if lane.feeds_back:
            token_ids.append(0)
        else:
            token_ids += lane.sequence.token_ids[lane.start : lane.stop]
        token_ids += lane.drafts
    return np.array(token_ids, dtype=np.int64)


def _sample_lane(lane: Lane) -> SampleLane:
    position = lane.stop - len(lane.drafts)
    num_output = position - lane.sequence.num_prompt
    return SampleLane(row=lane.row, position=position, num_output=num_output, offers=lane.offers, drafts=lane.drafts)


def _upload(values: Indices, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).pin_memory().to(device, non_blocking=True)
