"""Lanes whose tokens a device program draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.programs.session import ProgramLane, ProgramRunner, ProgramSession
from engine.sampling.sampler import ForcedTokens, LaneMasks, SampleLane, Sampler
from engine.scheduling.batch import RowAssignment

ROOM_TOKENS = 256
"""Output tokens that a program's history has room for at once."""


class ProgramRows:
    """Which rows of device state have a program. Costs nothing while none has.

    Args:
        vocab_size: Of the model.
        device: Where logits lie.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._runner = ProgramRunner(vocab_size, device)
        self._sessions: dict[int, ProgramSession] = {}

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def release(self, row: int) -> None:
        """A sequence gave its row up."""
        self._sessions.pop(row, None)

    def assign(self, taken: RowAssignment) -> None:
        """A sequence takes a row."""
        if taken.program is not None:
            taken.program.begin([*taken.prompt_ids, *taken.output_ids], ROOM_TOKENS, self._device)
            self._sessions[taken.row] = taken.program

    def draw(
        self, sampler: Sampler, logits: torch.Tensor, lanes: Sequence[SampleLane], masks: LaneMasks | None
    ) -> ForcedTokens | None:
        """Tokens of the lanes that have a program; None if there are no such lanes. Waits for nothing.

        Args:
            sampler: Does what comes before a draw.
            logits: [R, V] float32, not changed.
            lanes: One a row of `logits`.
            masks: What some of them may draw.
        """
        places = [place for place, lane in enumerate(lanes) if lane.row in self._sessions]
        if not places:
            return None
        values = sampler.process(logits, lanes, masks, places)
        drawing = [
            ProgramLane(self._sessions[lanes[place].row], at, lanes[place].position) for at, place in enumerate(places)
        ]
        tokens, _ = self._runner.run(values, drawing)
        drawn = values.gather(1, tokens.clamp_min(0)[:, None]).squeeze(1)
        tokens = torch.where(drawn > -torch.inf, tokens, -1)
        return ForcedTokens(torch.tensor(places, device=self._device), tokens)
