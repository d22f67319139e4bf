"""A generation that was stepped through in an earlier life, on its way to where it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.request import GenerateRequest, TokenEvent


@dataclass(slots=True)
class Asked:
    """What the engine was told to go on with, and has not answered in full.

    Attributes:
        chosen: Tokens that it was told to take, in order.
        num_steps: Draws behind them; all but the last are taken as they come.
        num_told: Tokens of these that it has told of.
        num_shown: Of `chosen`, those that had been shown together before the one that was chosen.
    """

    chosen: list[int]
    num_steps: int
    num_shown: int
    num_told: int = 0

    @property
    def rest(self) -> list[int]:
        """Tokens that are still to be taken."""
        return self.chosen[self.num_told :]

    @property
    def num_left(self) -> int:
        """Draws that are still to be taken as they come."""
        return self.num_steps - 1 - max(self.num_told - len(self.chosen), 0)


class Steps:
    """Follows what was told of the generation, and what was answered.

    Attributes:
        token_ids: Taken, and told of.
        asked: See `Asked`; None while the reader decides.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.asked: Asked | None = None
        self._shown: list[int] = []
        self._banned: dict[int, None] = {}

    def note(self, event: TokenEvent) -> None:
        """The engine has told this."""
        self.token_ids += event.token_ids
        if self.asked is not None:
            self.asked.num_told += len(event.token_ids)
        if event.proposal is not None:
            self._shown, self.asked = [event.proposal, *(token_id for token_id, _ in event.further)], None
        elif event.error is not None and self.asked is not None:
            # What was chosen is not allowed; it is asked again.
            self._shown, self.asked = self._shown[self.asked.num_shown :], None

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int) -> None:
        """The reader has answered this; see `EventStream.advance`."""
        chosen, proposal = self._shown[:num_taken], self._shown[num_taken]
        self._banned |= dict.fromkeys(banned)
        if token_id is not None or proposal not in banned:
            chosen.append(proposal if token_id is None else token_id)
        self.asked = Asked(chosen, num_steps, num_taken)

    def resumed(self, request: GenerateRequest) -> GenerateRequest:
        """The request that proposes the token behind those taken, by what was forbidden meanwhile."""
        sampling = request.sampling
        words = dict.fromkeys((*sampling.bad_words, *((token_id,) for token_id in self._banned)))
        return msgspec.structs.replace(
            request,
            num_given=len(self.token_ids),
            sampling=msgspec.structs.replace(sampling, bad_words=tuple(words)),
        )


def without_proposal(event: TokenEvent) -> TokenEvent:
    """The same where the reader is not to decide."""
    return msgspec.structs.replace(event, proposal=None, distribution=None, further=[])
