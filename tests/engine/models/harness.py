"""Runs a model over token lists without a runner: pages, chunks and lanes laid out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.attention.backend import LaneLayout
from engine.attention.select import select_backend
from engine.kv.storage import KVStorage
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.step import StepInputs, StepModel


def storage_for(
    config: ModelConfig,
    *,
    num_pages: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> KVStorage:
    """A storage for a model, filled with values that must never reach a result."""
    storage = KVStorage(
        num_layers=config.num_layers,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=torch.device(device),
    )
    for layer in storage.layers:
        layer.fill_(1e4)
    return storage


@dataclass(kw_only=True)
class Lane:
    """A token history, the pages it lies on, and how much of it is in them."""

    token_ids: Sequence[int]
    pages: Sequence[int]
    num_computed: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)


def run_step(model: StepModel, storage: KVStorage, work: Sequence[tuple[Lane, int]]) -> None:
    """Computes the next tokens of several lanes in one step and appends each lane's logits [rows, V]."""
    size = storage.page_size
    starts, slots, token_ids, positions = [0], [], [], []
    for lane, num_rows in work:
        for position in range(lane.num_computed, lane.num_computed + num_rows):
            slots.append(lane.pages[position // size] * size + position % size)
            positions.append(position)
            token_ids.append(lane.token_ids[position])
        starts.append(starts[-1] + num_rows)
    layout = LaneLayout(
        query_starts=starts,
        context_lens=[lane.num_computed + num_rows for lane, num_rows in work],
        block_tables=[lane.pages for lane, _ in work],
        slots=torch.tensor(slots, device=storage.device),
    )
    logits = model.forward(
        StepInputs(
            token_ids=torch.tensor(token_ids, device=storage.device),
            positions=torch.tensor(positions, device=storage.device),
            layout=layout,
            storage=storage,
            readout_rows=torch.arange(len(token_ids), device=storage.device),
        )
    )
    for (lane, num_rows), rows in zip(work, torch.split(logits, [num_rows for _, num_rows in work]), strict=True):
        lane.num_computed += num_rows
        lane.logits.append(rows)


def run_tokens(
    model: Decoder,
    token_ids: Sequence[int],
    *,
    chunks: Sequence[int] | None = None,
    pages: Sequence[int] | None = None,
    page_size: int = 16,
    backend: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Runs one history in chunks (all at once by default) and returns the logits of every position, [T, V]."""
    num_pages = -(-len(token_ids) // page_size)
    lane = Lane(token_ids=token_ids, pages=list(range(num_pages)) if pages is None else pages)
    device = model.device
    storage = storage_for(model.config, num_pages=max(lane.pages) + 1, page_size=page_size, dtype=dtype, device=device)
    model.backend = select_backend(backend, device)
    for num_rows in chunks or [len(token_ids)]:
        run_step(model, storage, [(lane, num_rows)])
    return torch.cat(lane.logits)
