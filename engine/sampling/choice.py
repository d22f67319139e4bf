"""How tokens are chosen from logits: the seam between the sampler and the forms that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch

from engine.drafting.offers import Offer
from engine.sampling.distribution import Outline
from engine.sampling.logprobs import Logprobs
from engine.sampling.masks import LaneMasks
from engine.sampling.plan import BatchPlan


class SampleLane(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One row of a step that wants a token.

    Attributes:
        row: Its row in `SamplerState`.
        position: Index of the token about to be drawn: tokens in the sequence before it.
        num_output: Output tokens drawn before this one.
        offers: What the tokens guessed from here on were drawn from; none if nothing is guessed, or without a draw.
        drafts: Those tokens.
    """

    row: int
    position: int
    num_output: int
    offers: Sequence[Offer] = ()
    drafts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Tokens that some lanes get whatever their logits are; what is remembered of them is as if they were drawn.

    Attributes:
        places: [F] int64, rows of the logits.
        token_ids: [F] int64; -1 where there is none, which is told as it is.
    """

    places: torch.Tensor
    token_ids: torch.Tensor

    def leave_alone(self, logits: torch.Tensor) -> None:
        """Makes every other token of these lanes impossible; [R, V] float32 is changed."""
        logits.index_fill_(0, self.places, -torch.inf)
        logits[self.places, self.token_ids.clamp_min(0)] = 0.0

    def written_to(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The tokens of all lanes [R] int64, these among them."""
        return token_ids.index_copy(0, self.places, self.token_ids)


Look = Callable[[torch.Tensor], torch.Tensor]
"""Takes logits [R, V] float32, at least one row; NaN counts as -inf, +inf as a large number. Returns int32
[R, `engine.sampling.looks.NUM_WORDS`], valid until the next call."""


class Choice(Protocol):
    """Chooses tokens of one state's rows; all forms choose the same, up to the last bit of a logarithm."""

    changes_logits: bool
    """True if logits may be changed even where the batch's parameters and masks change nothing."""

    @property
    def look(self) -> Look | None:
        """Writes down what rows of logits look like, and waits for nothing; None where there is no kernel for it."""
        ...

    def choose(
        self,
        logits: torch.Tensor,
        plan: BatchPlan,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None,
        forced: ForcedTokens | None = None,
    ) -> torch.Tensor:
        """Applies everything that comes before the choice, chooses [R] int64 and remembers it.

        Args:
            logits: [R, V] float32, contiguous, may be changed. NaN counts as -inf, +inf as a large number.
            plan: What the lanes use.
            lanes: One a row of `logits`.
            masks: Of some of them.
            forced: What some of them get whatever their logits are; 0 stands for -1 in what is returned.
        """
        ...

    def gather_logprobs(self, logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
        """Reports tokens and their likeliest alternatives; see `engine.sampling.logprobs.gather_logprobs`."""
        ...

    def outline(self, logits: torch.Tensor, places: Sequence[int], num_top: int) -> Outline:
        """Looks at rows of logits; see `engine.sampling.distribution.outline`."""
        ...
