"""One sequence's part of a step: how many tokens it may be, and everything that follows from them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as ListOf

from engine.contexts.held import HeldContext
from engine.contexts.registry import ContextRegistry
from engine.drafting.offers import Offer
from engine.forward.attended import attended_rows
from engine.forward.sights import positions_of
from engine.kv.manager import PageCopy
from engine.scheduling.batch import Batch, Lane
from engine.scheduling.pace import Pace
from engine.sequence import Sequence

PROMPT_READOUT_CHUNK = 256
"""Most prompt positions read out in one lane and step: each costs a row of logits over the whole vocabulary."""


class LaneBuilder:
    """Makes lanes of sequences whose pages are reserved; `engine.scheduling.plain` is the short way for most of them.

    Args:
        contexts: Know what the rows of a held context see.
        pace: How much of a prompt a short step may compute.
        page_size: Tokens of a page.
    """

    def __init__(self, contexts: ContextRegistry, pace: Pace, page_size: int) -> None:
        self._contexts = contexts
        self._pace = pace
        self._page_size = page_size

    def chunk(self, sequence: Sequence, budget: int) -> int:
        """Tokens that a running sequence may compute in one step that has room for so many; may free pages of it."""
        count = sequence.num_pending
        if count > budget:
            count = budget
        if count > 1 and self._pace.slows(sequence.payer.account):
            count = min(count, self._pace.prompt_left)
        if sequence.context is not None and sequence.context.edits:
            count = min(count, self._contexts.free_unseen(sequence))
        if sequence.row_adapter.number >= 0 and 0 < sequence.num_unshaped - sequence.num_scheduled < count:
            count = sequence.num_unshaped - sequence.num_scheduled  # what comes before the rows has another adapter
        if count > PROMPT_READOUT_CHUNK and sequence.wants_prompt_logprobs:
            return min(count, max(0, sequence.first_scored - sequence.num_scheduled) + PROMPT_READOUT_CHUNK)
        return count

    def append(
        self,
        batch: Batch,
        sequence: Sequence,
        count: int,
        *,
        copies: ListOf[PageCopy],
        drafts: ListOf[int] = (),
        offers: ListOf[Offer] = (),
    ) -> None:
        """Adds a sequence's lane to a step, and notes on the sequence what it hands to the device.

        Args:
            batch: The step.
            sequence: It runs, and has pages for what it computes.
            count: Tokens of its history, at least one.
            copies: Pages to copy before.
            drafts: Guessed tokens behind them.
            offers: What those were drawn from, if they were.
        """
        assert sequence.table is not None
        assert sequence.row is not None
        assert count > 0
        if sequence.num_pending > 1 and self._pace.slows(sequence.payer.account):
            self._pace.prompt_left -= count
        start, stop = sequence.num_scheduled, sequence.num_scheduled + count
        samples = stop == sequence.num_tokens < sequence.max_total
        lane = Lane(
            sequence=sequence,
            run=sequence.runs,
            start=start,
            num_tokens=count + len(drafts),
            samples=samples,
            feeds_back=sequence.num_in_flight > 0,
            reads_prompt=start < sequence.num_prompt - 1 and sequence.scores(stop),
            row=sequence.row,
            pages=sequence.table.pages[:],
            copies=copies,
            pools=sequence.request.pooling is not None and sequence.pools(stop),
            drafts=drafts,
            offers=offers[: len(drafts)],
        )
        batch.append(lane)
        has_own = sequence.row_adapter.number >= 0 and start >= sequence.num_unshaped
        lane.adapter = (sequence.row_adapter if has_own else sequence.adapter).number
        batch.num_adapted += lane.adapter >= 0
        batch.num_drafts += len(drafts)
        batch.is_awaited |= sequence.drafter is not None and sequence.drafter.waits
        if sequence.context is not None:
            self._hold(batch, lane, sequence.context)
        sequence.num_in_flight += samples
        if copies:
            sequence.copied_from, sequence.copied_to = start // self._page_size * self._page_size, lane.stop
        if samples and sequence.constraint is not None:
            batch.constrained.append(lane)
        sequence.num_scheduled = lane.stop

    def _hold(self, batch: Batch, lane: Lane, context: HeldContext) -> None:
        """Gives the lane of a held context what others do not have."""
        sequence = lane.sequence
        if lane.samples and lane.stop >= sequence.take_until:
            lane.proposes, lane.readout = True, sequence.request.readout
            batch.num_readouts += lane.readout is not None
        if context.edits or context.shape is not None:
            batch.num_edited += 1
            lane.offset, lane.mask = sequence.num_dropped, self._contexts.mask(sequence, lane.start, lane.stop)
        if context.shape is not None:
            lane.positions = positions_of(context.shape, lane.start, lane.stop)
        if sequence.reads:
            first, last = bisect_left(sequence.reads, lane.start), bisect_left(sequence.reads, lane.stop)
            lane.reads = [slot - lane.start for slot in sequence.reads[first:last]]
            lane.first_read = sequence.first_read + first
        if sequence.request.attention is not None:
            lane.attends = attended_rows(sequence.request, lane, context)
            batch.num_attended += lane.attends is not None
