"""Lanes whose tokens a device program draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from engine.programs.session import ProgramLane, ProgramRunner, ProgramSession
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import ForcedTokens, LaneMasks, SampleLane, Sampler
from engine.sampling.state import SamplerState
from engine.scheduling.batch import RowAssignment

ROOM_TOKENS = 256
"""Output tokens that a program's history has room for at once."""


@dataclass(frozen=True, slots=True)
class ProgramDraws:
    """What the programs of a step made of its logits.

    Attributes:
        logits: [R, V] float32 to sample from: those of a lane may be a program's scores.
        forced: Tokens that are drawn already.
        lanes: Those that have a program, by place.
    """

    logits: torch.Tensor
    forced: ForcedTokens | None
    lanes: Sequence[tuple[int, ProgramSession, int]]

    def tell(self, token_ids: torch.Tensor) -> None:
        """Writes the tokens of the step [R] int64 into the programs' histories."""
        for place, session, position in self.lanes:
            session.append(position, token_ids[place : place + 1])


class ProgramRows:
    """Which rows of device state have a program. Costs nothing while none has.

    Args:
        state: Of the rows.
    """

    def __init__(self, state: SamplerState) -> None:
        self._state = state
        self._runner = ProgramRunner(state.vocab_size, state.device)
        self._sessions: dict[int, ProgramSession] = {}

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def release(self, row: int) -> None:
        """A sequence gave its row up."""
        self._sessions.pop(row, None)

    def assign(self, taken: RowAssignment) -> SamplingParams:
        """A sequence takes a row. Returns how the sampler is to draw for it."""
        if taken.program is None:
            return taken.params
        taken.program.begin([*taken.prompt_ids, *taken.output_ids], ROOM_TOKENS, self._state.device)
        self._sessions[taken.row] = taken.program
        return msgspec.structs.replace(taken.params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

    def draw(
        self, sampler: Sampler, logits: torch.Tensor, lanes: Sequence[SampleLane], masks: LaneMasks | None
    ) -> ProgramDraws:
        """Runs the programs of a step. Waits for nothing.

        Args:
            sampler: Does what comes before a draw.
            logits: [R, V] float32; may be changed.
            lanes: One a row of `logits`.
            masks: What some of them may draw.
        """
        masked = frozenset(() if masks is None else masks.lanes)
        bare: list[int] = []
        edited: list[int] = []
        for place, lane in enumerate(lanes):
            if lane.row in self._sessions:
                is_edited = place in masked or self._state[lane.row].is_special
                (edited if is_edited else bare).append(place)
        forced = []
        if bare:
            forced.append(self._draw_bare(logits, lanes, bare))
        if edited:
            forced.append(self._draw_edited(sampler.process(logits, lanes, masks, edited), lanes, edited))
        drawn = [one for one in forced if one is not None]
        told = [(place, self._sessions[lanes[place].row], lanes[place].position) for place in (*bare, *edited)]
        return ProgramDraws(logits, _joined(drawn), told)

    def _draw_bare(
        self, logits: torch.Tensor, lanes: Sequence[SampleLane], places: Sequence[int]
    ) -> ForcedTokens | None:
        """Programs that read the model's own logits: the sampler draws from their scores where that can be."""
        drawing = [ProgramLane(self._sessions[lanes[at].row], at, lanes[at].position) for at in places]
        drawn = self._runner.run(logits, drawing, defer=True)
        for group, scores in drawn.scores:
            rows = [places[at] for at in group]
            if len(rows) == len(logits):
                logits.copy_(scores)
            else:
                logits[rows] = scores
        if not drawn.places:
            return None
        rows = [places[at] for at in drawn.places]
        return ForcedTokens(self._index(rows), drawn.tokens[drawn.places])

    def _draw_edited(self, values: torch.Tensor, lanes: Sequence[SampleLane], places: Sequence[int]) -> ForcedTokens:
        """Programs that read logits after penalties, bans and masks, which must hold for what they return too."""
        drawing = [
            ProgramLane(self._sessions[lanes[place].row], at, lanes[place].position) for at, place in enumerate(places)
        ]
        tokens = self._runner.run(values, drawing).tokens
        allowed = values.gather(1, tokens.clamp_min(0)[:, None]).squeeze(1) > -torch.inf
        return ForcedTokens(self._index(places), torch.where(allowed, tokens, -1))

    def _index(self, places: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(places), dtype=torch.int64, device=self._state.device)


def _joined(forced: Sequence[ForcedTokens]) -> ForcedTokens | None:
    if len(forced) < 2:
        return forced[0] if forced else None
    return ForcedTokens(torch.cat([one.places for one in forced]), torch.cat([one.token_ids for one in forced]))
