"""A step in two parts: lanes without an adapter by one model, the others by one that knows adapters."""

from __future__ import annotations

from typing import Any

import torch

from engine.adapters.batch import StepPart, take_lanes
from engine.models.step import StepInputs, StepModel


class SplitModel:
    """A `StepModel`. Both parts write to the same pages, each to its own.

    Attributes:
        config: What both are.
        team: Threads of the plain model, if it has any.
        parts: The two, the plain one first.
    """

    def __init__(self, plain: StepModel, adapted: StepModel) -> None:
        """Takes two models of the same weights; `adapted` computes lanes with adapters."""
        self.config = plain.config
        self.team: Any = getattr(plain, "team", None)
        self.parts = plain, adapted
        self._plain = plain
        self._adapted = adapted

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step; see `StepModel.forward`."""
        adapted = [lane for lane, number in enumerate(inputs.adapters) if number >= 0]
        if not adapted:
            return self._plain.forward(inputs)
        if len(adapted) == len(inputs.adapters):
            return self._adapted.forward(inputs)
        plain = [lane for lane, number in enumerate(inputs.adapters) if number < 0]
        logits = torch.empty(
            (len(inputs.readout_rows), self.config.vocab_size), dtype=torch.float32, device=inputs.token_ids.device
        )
        for model, lanes in ((self._plain, plain), (self._adapted, adapted)):
            self._compute(model, take_lanes(inputs, lanes), inputs, logits)
        return logits

    def _compute(self, model: StepModel, part: StepPart, inputs: StepInputs, logits: torch.Tensor) -> None:
        logits[part.readouts] = model.forward(part.inputs)
        part.give_hidden(inputs)
