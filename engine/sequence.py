"""One token history and how far it has come: asked, scheduled, computed, finished.

prompt_ids            output_ids        (in flight)
|-------------------|-----------------|.|           num_tokens counts all three
|----------- num_computed ----------|                results applied: K and V are there
|------------- num_scheduled --------------|         handed to the device, results may be out
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as TokenList
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.adapters.table import NO_ADAPTER, AdapterPlace
from engine.constraints.constraint import Constraint
from engine.contexts.edits import NEVER
from engine.contexts.held import HeldContext
from engine.drafting.drafter import Drafter
from engine.forward.lockstep import LaneGroup
from engine.kv.block_table import BlockTable
from engine.kv.manager import PrefixName
from engine.kv.meter import Payer
from engine.programs.session import ProgramSession
from engine.request import Distribution, GenerateRequest, Pooling, TokenLogprob
from engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from engine.attention.scores import Scores
    from engine.contexts.hosting import Plan
    from engine.scheduling.batch import LaneResult


class SequenceStatus(enum.Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One of a request's `n` continuations.

    Attributes:
        request: What was asked.
        index: Which of its `n`; also its random stream.
        arrival: Rises with every sequence the engine accepts.
        seed: Resolved seed.
        stop_ids: Tokens that end it.
        payer: Whom the KV meter charges for it; its context's, if it has one.
        token_ids: Prompt and known output.
        num_in_flight: Sampled tokens whose ids the host does not know yet, or that are only proposed.
        num_scheduled: Tokens handed to the device in the present run.
        num_computed: Tokens whose K and V are known to be stored.
        copied_from, copied_to: First position of the last pages copied for it, from others or from host memory, and the
            end of the lane they were copied for: until that lane's results are there the copies may yet fail.
        num_cached: Prompt tokens the first admission took from the cache; None before.
        name: What its history is called in the prefix cache; made when it first asks for admission.
        table: Its pages while it runs.
        row: Its row of device state while it runs.
        leader: Who computes what both have in common: for index > 0 the first of the request, for a context a relative.
        num_shared: For a context: how much that is.
        context: The held context that it computes on, if any.
        adapter: Its adapter, if any.
        row_adapter: Another one for the rows of its pass, which begin with the shape of its context.
        restoring: How its context is to come back from host memory when it enters.
        num_dropped: Tokens of it whose pages were freed: slots lie that much before positions.
        reported: Its first event is out.
        prompt_logprobs: Those read so far.
        pooled: Sum of the hidden states that its embedding is made of, as far as they are computed; None before.
        runs: How often it was admitted; results of an earlier run are recognised by it.
        constraint: Its place in the language that its output must belong to, after the tokens the host knows.
        program: What draws its tokens, if that is not the sampler.
        drafter: Guesses its next tokens, if its request wants that.
        is_plain: Nothing but tokens is wanted of it; see `engine.scheduling.plain`.
        group: Who draws its tokens together with it, if anybody does.
        reads: Slots that are read out, rising.
        first_read: Number of the first of them among all rows of its pass.
        rows: Those read so far.
        attention: What rows attend to, as far as that is known.
        take_until: A token drawn at this position or later is proposed only; see `engine.scheduling.stepping`.
        proposal: The token proposed, until the caller has said what to take.
        ahead: Draws behind the proposal, as if it were taken.
        num_shown: How many of the proposal and those behind it the caller has been told of.
        num_ahead: Tokens behind the computed ones whose K and V are stored, as if all that is proposed were taken.
        trust: How likely the caller is to take what is proposed; see `engine.scheduling.stepping`.
        params: How it is sampled now.
        num_prompt: Tokens of the prompt.
        max_total: Length at which it ends.
        num_to_compute: Tokens whose K and V are ever needed: all but the last output token, or the whole prompt.
    """

    request: GenerateRequest
    index: int
    arrival: int
    seed: int
    stop_ids: frozenset[int]
    payer: Payer
    token_ids: list[int] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.WAITING
    num_in_flight: int = 0
    num_scheduled: int = 0
    num_computed: int = 0
    copied_from: int = 0
    copied_to: int = 0
    num_cached: int | None = None
    name: PrefixName | None = None
    table: BlockTable | None = None
    row: int | None = None
    leader: Sequence | None = None
    num_shared: int = 0
    context: HeldContext | None = None
    restoring: Plan | None = None
    adapter: AdapterPlace = NO_ADAPTER
    row_adapter: AdapterPlace = NO_ADAPTER
    num_dropped: int = 0
    runs: int = 0
    reported: bool = False
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    pooled: npt.NDArray[np.float64] | None = None
    constraint: Constraint | None = None
    program: ProgramSession | None = None
    drafter: Drafter | None = None
    group: LaneGroup | None = None
    reads: TokenList[int] = ()
    first_read: int = 0
    rows: list[Distribution] = field(default_factory=list)
    attention: list[Scores] = field(default_factory=list)
    proposal: int | None = None
    ahead: list[LaneResult] = field(default_factory=list)
    num_shown: int = 0
    num_ahead: int = 0
    trust: int = 0
    take_until: int = field(init=False)
    params: SamplingParams = field(init=False)
    is_plain: bool = False
    num_prompt: int = field(init=False)
    max_total: int = field(init=False)
    num_to_compute: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids) - self.request.num_given
        self.take_until = self.num_prompt if self.request.stepped else NEVER
        self.params = self.request.sampling
        self.max_total = self.num_prompt + self.request.sampling.max_tokens
        self.num_to_compute = max(self.num_prompt, self.max_total - 1)

    @property
    def members(self) -> tuple[Sequence, ...]:
        """Those that enter, yield and end together, itself among them."""
        return (self,) if self.group is None else self.group.members

    @property
    def kib_ms(self) -> int:
        """What was charged so far for the pages of all members."""
        return self.payer.kib_ms if self.group is None else sum(one.payer.kib_ms for one in self.group.members)

    @property
    def is_running(self) -> bool:
        """It has pages and a row."""
        return self.status is SequenceStatus.RUNNING

    @property
    def is_finished(self) -> bool:
        """It ended, one way or another."""
        return self.status is SequenceStatus.FINISHED

    @property
    def num_tokens(self) -> int:
        """Tokens in the history, those in flight included."""
        return len(self.token_ids) + self.num_in_flight

    @property
    def num_certain(self) -> int:
        """Tokens whose K and V are there whatever becomes of the steps in flight."""
        return self.num_computed if self.num_computed >= self.copied_to else min(self.num_computed, self.copied_from)

    @property
    def num_output(self) -> int:
        """Output tokens, those in flight included."""
        return self.num_tokens - self.num_prompt

    @property
    def num_unshaped(self) -> int:
        """Leading tokens of its context that are no rows of its pass."""
        shape = None if self.context is None else self.context.shape
        return 0 if shape is None else shape.start

    @property
    def num_pending(self) -> int:
        """Tokens of the history that are yet to be given to a step."""
        num_tokens = len(self.token_ids) + self.num_in_flight
        return (num_tokens if num_tokens < self.num_to_compute else self.num_to_compute) - self.num_scheduled

    @property
    def prompt_ids(self) -> TokenList[int]:
        """What it began with."""
        return self.request.prompt_ids if self.context is None else self.token_ids[: self.num_prompt]

    @property
    def output_ids(self) -> TokenList[int]:
        """Output tokens the host knows."""
        return self.token_ids[self.num_prompt :]

    def forced_tokens(self) -> list[int]:
        """Tokens that can only come next, at most as many as may, up to the first that ends the sequence.

        None where each must be drawn all the same: because its log-probability or the prompt's is to be reported, or
        because what was drawn counts for later draws.
        """
        if (
            self.constraint is None
            or self.request.stepped
            or self.program is not None
            or self.wants_prompt_logprobs
            or not self.request.sampling.takes_forced_tokens
        ):
            return []
        forced = self.constraint.forced()[: self.max_total - len(self.token_ids)]
        for count, token_id in enumerate(forced, start=1):
            if token_id in self.stop_ids:
                return forced[:count]
        return forced

    @property
    def num_open(self) -> int:
        """Tokens drawn, or being drawn, that are only proposed: the caller may yet take others."""
        return len(self.token_ids) + self.num_in_flight - max(self.take_until, len(self.token_ids))

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: lower priority value, then earlier arrival."""
        return (self.request.priority, self.arrival)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True until every prompt position has been reported."""
        return self.request.prompt_logprobs is not None and self.index == 0 and not self.reported

    def scores(self, stop: int) -> bool:
        """True if a lane that computes up to position `stop` reads log-probabilities of the prompt."""
        return self.wants_prompt_logprobs and stop > self.first_scored

    @property
    def num_reusable(self) -> int:
        """Tokens that need not be computed where their K and V are there already: nothing is read at their positions.

        The last token is never one of them, for its logits are wanted.
        """
        most = min(len(self.token_ids) - 1, *self.reads[:1]) if self.reads else len(self.token_ids) - 1
        if self.wants_prompt_logprobs:
            return min(most, self.first_scored)
        return 0 if self.request.pooling is Pooling.MEAN else most

    @property
    def first_scored(self) -> int:
        """First position whose logits score the token after it, where log-probabilities of the prompt are wanted."""
        return max(0, self.request.logprobs_start - 1)

    def pools(self, stop: int) -> bool:
        """True if hidden states of a lane that computes up to position `stop` are part of the embedding."""
        pooling = self.request.pooling
        return pooling is Pooling.MEAN or (pooling is Pooling.LAST and stop == self.num_prompt)

    def pool(self, states: npt.NDArray[np.float64]) -> None:
        """Adds the sum of a lane's hidden states, in float64 so that it does not matter how the prompt was cut."""
        self.pooled = states if self.pooled is None else self.pooled + states

    def embedding(self) -> bytes | None:
        """The embedding, as it is sent, once the whole prompt is computed; None if none is wanted."""
        if self.pooled is None:
            return None
        count = self.num_prompt if self.request.pooling is Pooling.MEAN else 1
        return (self.pooled / count).astype("<f4").tobytes()
