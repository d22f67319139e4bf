"""One step's work: which tokens of which sequences, and what comes back for each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from engine.attention.scores import Attends, Scores
from engine.constraints.masks import MaskHandover
from engine.drafting.offers import Offer
from engine.kv.manager import PageCopy
from engine.kv.tiers import Transfer
from engine.programs.session import ProgramSession
from engine.request import Distribution, Probes, Readout, TokenLogprob
from engine.sampling.params import SamplingParams
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class RowAssignment:
    """A sequence that takes a row of device state before this step; a snapshot, safe to read while the host goes on.

    `lane` is its place among those that draw together by `program`; `is_offered` says that its lanes may have offers.
    """

    row: int
    params: SamplingParams
    seed: int
    stream: int
    prompt_ids: ListOf[int]
    output_ids: ListOf[int]
    eos_token_ids: ListOf[int]
    program: ProgramSession | None = None
    lane: int = 0
    is_offered: bool = False


class Lane(msgspec.Struct, eq=False, gc=False):  # a struct is made in a fifth of the time of a dataclass
    """One sequence's part of a step: positions start..start+num_tokens-1.

    Attributes:
        sequence: Whose.
        run: The sequence's `runs` when it was scheduled; results of an earlier run are void.
        start: First position computed.
        num_tokens: Query span.
        samples: A token is drawn after the last position, and taken.
        feeds_back: The one token to compute is still on the device.
        reads_prompt: Log-probabilities of the prompt tokens after each position are wanted.
        pools: Hidden states of it are wanted, for the sequence's embedding.
        row: Row of device state.
        pages: The sequence's pages at this step, C ints.
        copies: Pages to copy before the step (copy-on-write).
        proposes: The token drawn is not taken: the sequence pauses with it.
        offset: Tokens of the history whose pages were freed: slots lie that much before positions.
        mask: [num_tokens, stop - offset] bool, what each of its rows sees; None for all slots up to its own.
        readout: What is wanted of the distribution that it samples from.
        reads: Rows that are read out, counted from its first.
        first_read: Number of the first of them among all rows of its pass.
        positions: [num_tokens] int64, rotary positions of its rows; None for those of their slots.
        drafts: Guessed tokens that it computes behind the one to compute, to draw behind each that proves right.
        offers: What each of them was drawn from, if they were.
        adapter: Number of the adapter that computes it, -1 for the model alone.
        attends: Which of its rows are asked what they attend to.
    """

    sequence: Sequence
    run: int
    start: int
    num_tokens: int
    samples: bool
    feeds_back: bool
    reads_prompt: bool
    row: int
    pages: array[int]
    copies: ListOf[PageCopy]
    pools: bool = False
    readout: Readout | None = None
    proposes: bool = False
    offset: int = 0
    mask: npt.NDArray[np.bool_] | None = None
    reads: ListOf[int] = ()
    first_read: int = 0
    positions: npt.NDArray[np.int64] | None = None
    drafts: ListOf[int] = ()
    offers: ListOf[Offer] = ()
    adapter: int = -1
    attends: Attends | None = None

    @property
    def stop(self) -> int:
        """One past the last position computed."""
        return self.start + self.num_tokens


@dataclass(slots=True)
class Batch:
    """The lanes of one step, and what must happen on the device before them, in this order.

    Attributes:
        lanes: Decoding lanes first.
        num_tokens: Of all lanes.
        transfers: Pages copied to host memory, before all else, and from there, after copies between pages.
        released_rows: Rows of device state given up since the step before.
        assigned_rows: Rows taken.
        constrained: Lanes that draw within a language.
        num_edited: Lanes on histories with edits or a shape.
        num_readouts: Lanes whose distribution is wanted.
        num_adapted: Lanes that have an adapter.
        num_drafts: Guessed tokens among the tokens.
        num_attended: Lanes that are asked what they attend to.
        is_awaited: Somebody in it can only go on once its tokens are known, so that the next step begins after it.
        masks: How those lanes' masks come to the device, if there are any.
    """

    lanes: list[Lane] = field(default_factory=list)
    num_tokens: int = 0
    transfers: list[Transfer] = field(default_factory=list)
    released_rows: list[int] = field(default_factory=list)
    assigned_rows: list[RowAssignment] = field(default_factory=list)
    constrained: list[Lane] = field(default_factory=list)
    num_edited: int = 0
    num_readouts: int = 0
    num_adapted: int = 0
    num_drafts: int = 0
    num_attended: int = 0
    is_awaited: bool = False
    masks: MaskHandover | None = None

    def append(self, lane: Lane) -> None:
        """Adds a lane."""
        self.lanes.append(lane)
        self.num_tokens += lane.num_tokens

    def withdraw(self, sequence: Sequence) -> None:
        """Takes a sequence's lane out again, if it has one."""
        self.lanes = [lane for lane in self.lanes if lane.sequence is not sequence]
        self.constrained = [lane for lane in self.constrained if lane.sequence is not sequence]
        self.num_tokens = sum(lane.num_tokens for lane in self.lanes)

    @property
    def copies(self) -> list[PageCopy]:
        """Pages the device copies before anything else of this step."""
        return [copy for lane in self.lanes if lane.copies for copy in lane.copies]


class LaneResult(msgspec.Struct, frozen=True, gc=False):
    """What a step gave one lane.

    Attributes:
        token_id: The token drawn, if the lane samples.
        logprob: Of that token, if asked for.
        prompt_logprobs: One entry for each position whose next prompt token was asked about.
        pooled: Sum of the hidden states wanted, if the lane pools.
        distribution: What the token was drawn from, if asked for.
        further: Tokens drawn behind guesses that were right, with their log-probabilities if asked for; one a guess.
        probes: What the program that drew it noted down, if it does.
        rows: Distributions behind the rows wanted.
        attention: What the rows wanted attend to, or one sum.
    """

    token_id: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: ListOf[TokenLogprob] = ()
    pooled: npt.NDArray[np.float64] | None = None
    distribution: Distribution | None = None
    further: ListOf[tuple[int, TokenLogprob | None]] = ()
    probes: Probes | None = None
    rows: ListOf[Distribution] = ()
    attention: ListOf[Scores] = ()
