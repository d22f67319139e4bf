"""The seam to a device with a way of its own for steps in which every lane computes one token and draws the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch

from engine.programs.session import ProgramLane
from engine.sampling.choice import SampleLane
from engine.scheduling.batch import Batch, Lane

StagedDecode = Any
"""What `DecodeStep.stage` made of lanes; nobody else looks into it."""


class DrawnStep(msgspec.Struct, frozen=True, eq=False):
    """What a step came to that ended with the tokens drawn.

    Attributes:
        tokens: [L] integers; -1 where a device program returned none.
        noted: Places of a program's lanes among these, and what it noted down, by name: [lanes of it, any].
        looks: [L, `engine.sampling.looks.NUM_WORDS`] int32, where distributions were asked for; rows of lanes that did
            not ask say nothing. Valid until the next step begins.
    """

    tokens: torch.Tensor
    noted: Sequence[tuple[Sequence[int], Mapping[str, torch.Tensor]]] = ()
    looks: torch.Tensor | None = None


class DecodeStep(Protocol):
    """Computes such steps; see `engine.cuda.graphs`."""

    def stage(self, lanes: Sequence[Lane]) -> StagedDecode | None:
        """Reads what a step needs from the host's objects; None if it cannot take these lanes."""
        ...

    def draw(self, staged: StagedDecode, *, looks: bool = False) -> DrawnStep | None:
        """Starts a step that ends with the tokens drawn. None, and nothing, where a lane wants more of its draw than
        the device's own way has, or the device is not ready for that.

        Args:
            staged: The step.
            looks: Lanes want to see what they draw from, as far as `engine.sampling.looks` writes it down.
        """
        ...

    def draw_by_program(self, staged: StagedDecode, lanes: Sequence[ProgramLane]) -> DrawnStep | None:
        """Starts a step that ends with the tokens drawn, some by one device program. None, and nothing, where it has no
        way for that, or not yet.

        Args:
            staged: The step.
            lanes: Those that run the program, alike all of them, by their places in the step.
        """
        ...

    def finish_by_program(
        self, logits: torch.Tensor, lanes: Sequence[SampleLane], own: Sequence[ProgramLane]
    ) -> DrawnStep | None:
        """Draws from the logits of a step that was computed in another way, some by one device program. None, and
        nothing, where it has no way for that, or not yet.

        Args:
            logits: [L, V] float32; may be changed.
            lanes: All that draw, one a row; none under a mask or with a guess.
            own: Those that run the program, alike all of them, by their places among these.
        """
        ...

    def recall(self, rows: Sequence[int], lanes: Sequence[ProgramLane]) -> None:
        """Tells sessions what they must know of steps drawn by `draw_by_program` or `finish_by_program`, before these
        draw in another way.

        Args:
            rows: Rows of device state of the lanes.
            lanes: Those that are about to run programs.
        """
        ...

    def forward(self, staged: StagedDecode) -> torch.Tensor:
        """Starts a step that ends with logits [L, V] float32, valid until the next step begins; they may be changed."""
        ...

    def rest(self) -> None:
        """Called when no step waits: time for what makes later ones faster. Raises nothing."""
        ...


def only_decodes(batch: Batch) -> bool:
    """True if every lane computes one token and draws, from a history as it came and with the model's own weights."""
    if batch.num_tokens != len(batch.lanes) or batch.num_edited or batch.num_adapted or batch.num_drafts:
        return False
    if batch.num_attended:
        return False
    return all(lane.samples and not (lane.reads_prompt or lane.pools or lane.reads) for lane in batch.lanes)
