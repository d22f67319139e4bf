"""Steps with prompts recorded as graphs: a short prompt costs the host ten launches a layer otherwise.

A step is filled up to a number of tokens of which there is a recording; tokens that are nobody's are computed too,
stored nowhere and attended to by nobody. Lengths, slots and pages are read on the device. Long steps of nothing but
whole prompts, which cuDNN attends to, are recorded for each batch of them that comes again and again. Not where
`WYE_PROMPT_GRAPHS` says 0.

Letters: T tokens of a step, R rows read out, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from engine.attention.backend import AttentionBackend, LaneLayout
from engine.attention.cudnn import CudnnBackend
from engine.attention.fresh import Batch
from engine.attention.mixed import MixedBackend
from engine.attention.plan_room import PlanRoom, count_lanes, launch_shapes
from engine.attention.triton import TritonBackend
from engine.cuda.decoder import CudaDecoder
from engine.cuda.recordings import Recordings, capture
from engine.kv.storage import KVStorage
from engine.models.step import StepInputs

SIZES = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Tokens of steps that are recorded: from 64 on near enough to each other that filling up adds half at most."""

READS = (64, 320)
"""Rows whose logits are read out: few, and those of many decoding lanes beside prompts."""

ROOMS: Sequence[Mapping[int, int]] = ({2: 64, 3: 16}, {1: 64, 2: 64, 3: 16}, {1: 256, 2: 64, 3: 64})
"""Lanes by size (see `engine.attention.triton.lane_sizes`): prompts alone, beside decoding lanes, beside many."""

FIRST_SIZES = SIZES[:9]
FIRST_ROOMS = ((READS[0], 0), (READS[0], 1), (READS[1], 1))
"""Steps that are recorded at the start, by rows read out and room: others are once they have been met a few times."""

MOST_GRAPHS = 64


class _Kind(NamedTuple):
    """Steps that one graph serves: those that fit into one of `ROOMS`, or are made of some batches of whole prompts."""

    num_tokens: int
    num_reads: int
    room: int | tuple[Batch, ...]


class _Recorded:
    """One graph and what it reads.

    Args:
        kind: Which steps.
        decoder: What is computed.
        storage: K and V.
        logits: [R, V] float32, written by replays.
        pool: Memory that graphs share.
        whole: Attends where a step is made of whole prompts.
    """

    def __init__(
        self,
        kind: _Kind,
        decoder: CudaDecoder,
        storage: KVStorage,
        logits: torch.Tensor,
        pool: list[Any],
        whole: CudnnBackend | None,
    ) -> None:
        device = storage.device

        def make(length: int) -> torch.Tensor:
            return torch.zeros(length, dtype=torch.int64, device=device)

        self._share = decoder.config.num_heads // decoder.config.num_kv_heads
        slots = make(kind.num_tokens).fill_(-1)
        layout = LaneLayout(query_starts=(0, kind.num_tokens), context_lens=(), block_tables=(), slots=slots)
        self._inputs = StepInputs(
            token_ids=make(kind.num_tokens),
            positions=make(kind.num_tokens),
            layout=layout,
            storage=storage,
            readout_rows=make(kind.num_reads),
        )
        self._logits = logits[: kind.num_reads]
        self._room: PlanRoom | None = None
        backend: AttentionBackend
        plan: Any
        if isinstance(kind.room, int):
            shapes = launch_shapes(ROOMS[kind.room], self._share, storage)
            self._room = PlanRoom(shapes, kind.num_tokens, self._share, storage)
            backend, plan = TritonBackend(), self._room.plan
        else:
            assert whole is not None
            backend, plan = whole, whole.plan_whole(kind.room, layout)

        def run() -> None:
            self._logits.copy_(decoder.compute(self._inputs, backend, plan, holes=True))

        self._replay: Callable[[], None] = capture(run, device, pool)

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Starts a step, and returns logits [rows read out, V]; None, and nothing, if it does not fit."""
        cuts = None if self._room is None else self._room.cut(inputs.layout, self._share)
        if cuts is None and self._room is not None:
            return None
        own, num_tokens = self._inputs, len(inputs.token_ids)
        own.token_ids[:num_tokens].copy_(inputs.token_ids)
        own.positions[:num_tokens].copy_(inputs.positions)
        own.layout.slots[:num_tokens].copy_(inputs.layout.slots)
        own.layout.slots[num_tokens:].fill_(-1)
        own.readout_rows[: len(inputs.readout_rows)].copy_(inputs.readout_rows)
        if self._room is not None and cuts is not None:
            self._room.fill(cuts, inputs.layout.tables.pages)
        self._replay()
        return self._logits[: len(inputs.readout_rows)]


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
        self._logits: dict[int, torch.Tensor] = {}
        self._whole: CudnnBackend | None = None
        self._recordings: Recordings[_Kind] = Recordings(
            self._record, self._graphs.__delitem__, lambda kind: None, most=MOST_GRAPHS, device=storage.device
        )

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Starts a step by a graph, and returns logits [R, V] float32, valid until the next step; None if it cannot."""
        if inputs.storage is not self._storage or inputs.hidden is not None:
            return None
        kind = self._kind_of(inputs)
        return self._graphs[kind].run(inputs) if kind is not None and self._recordings.use(kind) else None

    def record(self, most_tokens: int) -> None:
        """Records the commonest kinds ahead of their use.

        Args:
            most_tokens: Of a step.
        """
        for size in FIRST_SIZES:
            for num_reads, room in FIRST_ROOMS:
                if size <= most_tokens:
                    self._recordings.record(_Kind(size, num_reads, room))

    def rest(self) -> None:
        """No step waits: records one that is due. Raises nothing."""
        self._recordings.rest()

    def _kind_of(self, inputs: StepInputs) -> _Kind | None:
        """Which kind a step is; None where none is recorded that it could be."""
        layout, backend = inputs.layout, self._decoder.backend
        num_tokens: int | None = len(inputs.token_ids)
        num_reads = next((count for count in READS if len(inputs.readout_rows) <= count), None)
        chosen = backend.chosen(layout) if isinstance(backend, MixedBackend) else backend
        room: int | tuple[Batch, ...] | None = None
        if isinstance(chosen, CudnnBackend):
            self._whole, room = chosen, chosen.whole(layout)
        elif isinstance(chosen, TritonBackend):
            num_tokens = next((size for size in SIZES if len(inputs.token_ids) <= size), None)
            room = self._room_for(layout) if num_tokens is not None else None
        if num_tokens is None or num_reads is None or room is None:
            return None
        return _Kind(num_tokens, num_reads, room)

    def _room_for(self, layout: LaneLayout) -> int | None:
        """The first of `ROOMS` that has room for a step's lanes."""
        counts = count_lanes(layout, self._share)
        if counts is None:
            return None
        fits = [all(count <= room.get(size, 0) for size, count in counts.items()) for room in ROOMS]
        return fits.index(True) if any(fits) else None

    def _record(self, kind: _Kind) -> None:
        if kind.num_reads not in self._logits:  # one for all: they are read before the next step
            size = kind.num_reads, self._decoder.config.vocab_size
            self._logits[kind.num_reads] = torch.zeros(size, device=self._storage.device)
        logits = self._logits[kind.num_reads]
        self._graphs[kind] = _Recorded(kind, self._decoder, self._storage, logits, self._pool, self._whole)
