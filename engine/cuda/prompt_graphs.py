"""Steps with prompts recorded as graphs: a short prompt costs the host ten launches a layer otherwise.

A step is filled up to a number of tokens of which there is a recording; tokens that are nobody's are computed too,
stored nowhere and attended to by nobody. Lengths, slots and pages are read on the device. Not where
`WYE_PROMPT_GRAPHS` says 0.

Letters: T tokens of a step, R rows read out, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from engine.attention.backend import LaneLayout
from engine.attention.mixed import MixedBackend
from engine.attention.plan_room import LaunchShape, PlanRoom, shapes_of
from engine.attention.triton import CutLaunch, TritonBackend, cut_step
from engine.cuda.decoder import CudaDecoder
from engine.cuda.recordings import Recordings, capture
from engine.kv.storage import KVStorage
from engine.models.step import StepInputs

SIZES = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Tokens of steps that are recorded: from 64 on near enough to each other that filling up adds half at most."""

READS = (16, 64, 320)
"""Rows whose logits are read out."""

MOST_GRAPHS = 24


class _Kind(msgspec.Struct, frozen=True):
    """Steps that one graph serves."""

    num_tokens: int
    num_reads: int
    shapes: tuple[LaunchShape, ...]


class _Recorded:
    """One graph and what it reads.

    Attributes:
        logits: [R, V] float32, of the last replay.
    """

    def __init__(self, kind: _Kind, decoder: CudaDecoder, storage: KVStorage, pool: list[Any]) -> None:
        device = storage.device

        def make(length: int) -> torch.Tensor:
            return torch.zeros(length, dtype=torch.int64, device=device)

        share = decoder.config.num_heads // decoder.config.num_kv_heads
        self.room = PlanRoom(kind.shapes, kind.num_tokens, share, storage)
        slots = make(kind.num_tokens).fill_(-1)
        layout = LaneLayout(query_starts=(0,), context_lens=(), block_tables=(), slots=slots)
        self._inputs = StepInputs(
            token_ids=make(kind.num_tokens),
            positions=make(kind.num_tokens),
            layout=layout,
            storage=storage,
            readout_rows=make(kind.num_reads),
        )
        self.logits = torch.empty(0)
        backend = TritonBackend()

        def run() -> None:
            self.logits = decoder.compute(self._inputs, backend, self.room.plan, holes=True)

        self._replay: Callable[[], None] = capture(run, device, pool)

    def run(self, inputs: StepInputs, cuts: list[CutLaunch]) -> torch.Tensor:
        """Starts a step that fits."""
        own, num_tokens = self._inputs, len(inputs.token_ids)
        own.token_ids[:num_tokens].copy_(inputs.token_ids)
        own.positions[:num_tokens].copy_(inputs.positions)
        own.layout.slots[:num_tokens].copy_(inputs.layout.slots)
        own.layout.slots[num_tokens:].fill_(-1)
        own.readout_rows[: len(inputs.readout_rows)].copy_(inputs.readout_rows)
        self.room.fill(cuts, inputs.layout.tables.pages)
        self._replay()
        return self.logits[: len(inputs.readout_rows)]


class PromptGraphs:
    """Recorded steps of a decoder; used by the device's thread alone.

    Args:
        decoder: What is computed.
        storage: K and V; steps on others are not taken.
    """

    def __init__(self, decoder: CudaDecoder, storage: KVStorage) -> None:
        self._decoder = decoder
        self._storage = storage
        self._share = decoder.config.num_heads // decoder.config.num_kv_heads
        self._graphs: dict[_Kind, _Recorded] = {}
        self._pool: list[Any] = []
        self._recordings: Recordings[_Kind] = Recordings(
            self._record, self._graphs.__delitem__, lambda kind: None, most=MOST_GRAPHS, device=storage.device
        )

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Starts a step by a graph, and returns logits [R, V] float32, valid until the next step; None if it cannot."""
        layout = inputs.layout
        if inputs.storage is not self._storage or inputs.hidden is not None or not self._is_ours(layout):
            return None
        num_tokens = next((size for size in SIZES if len(inputs.token_ids) <= size), None)
        num_reads = next((count for count in READS if len(inputs.readout_rows) <= count), None)
        if num_tokens is None or num_reads is None:
            return None
        cuts = cut_step(layout, self._storage, self._share)
        shapes = shapes_of(cuts, layout)
        if shapes is None:
            return None
        kind = _Kind(num_tokens, num_reads, shapes)
        if not self._recordings.use(kind) or not self._graphs[kind].room.has_room(cuts):
            return None
        return self._graphs[kind].run(inputs, cuts)

    def rest(self) -> None:
        """No step waits: records one that is due. Raises nothing."""
        self._recordings.rest()

    def _is_ours(self, layout: LaneLayout) -> bool:
        """Whether our own kernels attend in a step."""
        backend = self._decoder.backend
        chosen = backend.chosen(layout) if isinstance(backend, MixedBackend) else backend
        return isinstance(chosen, TritonBackend)

    def _record(self, kind: _Kind) -> None:
        self._graphs[kind] = _Recorded(kind, self._decoder, self._storage, self._pool)
