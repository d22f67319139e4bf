"""Token histories, pages and steps laid out by hand, for a native decoder and its references alike.

Letters: T rows of the step, N rows of a lane, C keys of its context, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from engine.attention.backend import LaneLayout
from engine.kv.storage import KVStorage
from engine.models.config import ModelConfig
from engine.models.step import StepInputs, StepModel


@dataclass(kw_only=True)
class Lane:
    """A token history on its pages.

    Attributes:
        token_ids: The history.
        positions: Rotary position of each token.
        pages: Block table.
        num_computed: Tokens whose K and V are there.
    """

    token_ids: Sequence[int]
    positions: Sequence[int]
    pages: Sequence[int]
    num_computed: int = 0


@dataclass(frozen=True)
class Rows:
    """The next rows of a lane in one step.

    Attributes:
        lane: Whose.
        num_rows: How many.
        mask: [N, C] bool, or None for causal.
    """

    lane: Lane
    num_rows: int
    mask: torch.Tensor | None = None


@dataclass
class Pool:
    """A storage whose unused slots hold NaN, and which of its pages are free.

    Attributes:
        storage: K and V.
        free: Page numbers, the next one to be taken last.
    """

    storage: KVStorage
    free: list[int] = field(default_factory=list)

    def lane(self, token_ids: Sequence[int], positions: Sequence[int] | None = None) -> Lane:
        """A lane on its own pages."""
        pages = [self.free.pop() for _ in range(-(-len(token_ids) // self.storage.page_size))]
        return Lane(token_ids=token_ids, positions=positions or range(len(token_ids)), pages=pages)


def make_pool(
    config: ModelConfig,
    *,
    num_pages: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    shuffled: int | None = None,
) -> Pool:
    """A pool for a model.

    Args:
        config: Of the model.
        num_pages: Pages.
        page_size: Tokens a page.
        dtype: bfloat16 for the native decoder, float32 for the others.
        shuffled: Seed of the order in which pages are taken; None takes them in order.
    """
    storage = KVStorage(
        num_layers=config.num_layers,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    for layer in storage.layers:
        layer.fill_(float("nan"))
    free = list(range(num_pages - 1, -1, -1))
    if shuffled is not None:
        random.Random(shuffled).shuffle(free)
    return Pool(storage, free)


def step_inputs(storage: KVStorage, work: Sequence[Rows], readout_rows: Sequence[int] | None = None) -> StepInputs:
    """The step that computes some lanes' next rows.

    Args:
        storage: K and V.
        work: Lanes and how many rows of each.
        readout_rows: Rows of the step; None reads all out.
    """
    size = storage.page_size
    starts, slots, token_ids, positions = [0], list[int](), list[int](), list[int]()
    for rows in work:
        lane = rows.lane
        for place in range(lane.num_computed, lane.num_computed + rows.num_rows):
            slots.append(lane.pages[place // size] * size + place % size)
            token_ids.append(lane.token_ids[place])
            positions.append(lane.positions[place])
        starts.append(len(slots))
    masks = [rows.mask for rows in work]
    layout = LaneLayout(
        query_starts=starts,
        context_lens=[rows.lane.num_computed + rows.num_rows for rows in work],
        block_tables=[rows.lane.pages for rows in work],
        slots=torch.tensor(slots, dtype=torch.int64),
        masks=masks if any(mask is not None for mask in masks) else (),
    )
    readouts = range(len(slots)) if readout_rows is None else readout_rows
    return StepInputs(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        layout=layout,
        storage=storage,
        readout_rows=torch.tensor(list(readouts), dtype=torch.int64),
    )


def run(model: StepModel, storage: KVStorage, work: Sequence[Rows]) -> list[torch.Tensor]:
    """Computes some lanes' next rows and returns the logits [N, V] of each."""
    logits = model.forward(step_inputs(storage, work))
    for rows in work:
        rows.lane.num_computed += rows.num_rows
    return list(torch.split(logits, [rows.num_rows for rows in work]))


def run_chunks(model: StepModel, pool: Pool, lane: Lane, chunks: Iterable[int]) -> torch.Tensor:
    """Computes a lane alone, chunk by chunk: logits [len(chunks), V] of all rows."""
    return torch.cat([run(model, pool.storage, [Rows(lane, num_rows)])[0] for num_rows in chunks])


def beginning(lane: Lane) -> Lane:
    """The same lane with nothing computed."""
    return replace(lane, num_computed=0)


def random_tokens(config: ModelConfig, length: int, seed: int) -> list[int]:
    """Token ids."""
    source = random.Random(seed)
    return [source.randrange(config.vocab_size) for _ in range(length)]
