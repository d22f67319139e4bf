"""The seam to a device with a way of its own for steps in which every lane computes one token and draws the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from engine.scheduling.batch import Batch, Lane

StagedDecode = Any
"""What `DecodeStep.stage` made of lanes; nobody else looks into it."""


class DecodeStep(Protocol):
    """Computes such steps; see `engine.cuda.graphs`."""

    def stage(self, lanes: Sequence[Lane]) -> StagedDecode | None:
        """Reads what a step needs from the host's objects; None if it cannot take these lanes."""
        ...

    def draw(self, staged: StagedDecode) -> torch.Tensor | None:
        """Starts a step that ends with the tokens drawn: [L] integers. None, and nothing, where a lane wants more of
        its draw than the device's own way has.
        """
        ...

    def forward(self, staged: StagedDecode) -> torch.Tensor:
        """Starts a step that ends with logits [L, V] float32, valid until the next step begins; they may be changed."""
        ...


def only_decodes(batch: Batch) -> bool:
    """True if every lane computes one token and draws, from a history as it came and with the model's own weights."""
    if batch.num_tokens != len(batch.lanes) or batch.num_edited or batch.num_adapted or batch.num_drafts:
        return False
    return all(lane.samples and not (lane.reads_prompt or lane.pools or lane.reads) for lane in batch.lanes)
