"""The seam between the runner and a model: one step's tensors in, logits and hidden states out.

Letters: T tokens of the step, R rows read out, Q rows whose hidden state is wanted, V vocabulary, E hidden_size.
A model may be torch modules, one native call, or a captured graph; the runner knows only this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.attention.backend import LaneLayout
from engine.kv.storage import KVStorage
from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class HiddenReadout:
    """Hidden states wanted of a step: what the final norm makes of its rows.

    Attributes:
        rows: [Q] int64, places in the step.
        states: [Q, E] float32, where the model writes them.
    """

    rows: torch.Tensor
    states: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInputs:
    """One step on the device.

    Attributes:
        token_ids: [T] int64.
        positions: [T] int64, rotary positions.
        layout: Lanes, their pages and what their tokens see.
        storage: K and V of all layers.
        readout_rows: [R] int64, rows whose next-token logits are wanted.
        hidden: Hidden states wanted, or None.
        adapters: For each lane the number of its adapter, -1 for none; empty where no lane has one.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    layout: LaneLayout
    storage: KVStorage
    readout_rows: torch.Tensor
    hidden: HiddenReadout | None = None
    adapters: Sequence[int] = ()


class StepModel(Protocol):
    """A decoder that runs one step of many sequences at once."""

    config: ModelConfig

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K, V and hidden states, and returns logits [R, V] float32."""
        ...
