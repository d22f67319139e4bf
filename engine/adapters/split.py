"""A step in parts: lanes without an adapter by one model, the others by one that knows adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.adapters.batch import take_lanes
from engine.models.step import StepInputs, StepModel


class SplitModel:
    """A `StepModel`. Its parts write to the same pages, each to its own.

    Attributes:
        config: What all are.
        team: Threads of the plain model, if it has any.
        parts: The plain one, and the one for adapters.
    """

    def __init__(
        self,
        plain: StepModel,
        adapted: StepModel,
        *,
        behind_plain: StepModel | None = None,
        is_behind_plain: Callable[[int], bool] | None = None,
    ) -> None:
        """Takes models of the same weights.

        Args:
            plain: Computes lanes without adapters.
            adapted: Computes lanes with adapters.
            behind_plain: Computes those of them whose history `plain` has computed, where it keeps K and V otherwise.
            is_behind_plain: Whether an adapter, by its number, is one of such lanes.
        """
        self.config = plain.config
        self.team: Any = getattr(plain, "team", None)
        self.parts = plain, adapted
        self._models = plain, adapted, behind_plain or adapted
        self._is_behind_plain = is_behind_plain if behind_plain is not None else None

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step; see `StepModel.forward`."""
        lanes: tuple[list[int], ...] = ([], [], [])
        for lane, number in enumerate(inputs.adapters):
            lanes[self._part_of(number)].append(lane)
        used = [(model, found) for model, found in zip(self._models, lanes, strict=True) if found]
        if len(used) <= 1:
            return (used[0][0] if used else self._models[0]).forward(inputs)
        logits = torch.empty(
            (len(inputs.readout_rows), self.config.vocab_size), dtype=torch.float32, device=inputs.token_ids.device
        )
        for model, found in used:
            part = take_lanes(inputs, found)
            logits[part.readouts] = model.forward(part.inputs)
            part.give_hidden(inputs)
        return logits

    def _part_of(self, number: int) -> int:
        if number < 0:
            return 0
        return 2 if self._is_behind_plain is not None and self._is_behind_plain(number) else 1
