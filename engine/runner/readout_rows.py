"""Which rows of a step are read out: those that lanes draw after, and prompt positions asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.scheduling.batch import Lane


@dataclass(frozen=True, slots=True)
class PromptReadout:
    """Prompt positions of one lane whose next token's log-probability is wanted.

    Attributes:
        lane: Its place in the batch.
        first, last: Its rows among those read out, last excluded.
        targets: The prompt tokens that follow those positions.
        num_top: Alternatives to report.
    """

    lane: int
    first: int
    last: int
    targets: list[int]
    num_top: int


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Guessed tokens of one lane.

    Attributes:
        lane: Its place in the batch.
        first: The row of the first guess among those read out; the others follow.
        token_ids: The guesses.
    """

    lane: int
    first: int
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PassRows:
    """Rows of one lane whose distributions are wanted.

    Attributes:
        lane: Its place in the batch.
        first, last: Their places among the rows read out, last excluded.
        number: Of the first of them among all rows of its pass.
    """

    lane: int
    first: int
    last: int
    number: int


class ReadoutRows(msgspec.Struct, frozen=True, eq=False, gc=False):
    """R rows of a step whose logits are wanted, S of which are sampled from.

    Attributes:
        rows: R places in the step.
        sampling: S places in the batch: the lanes that sample.
        sample_rows: S places among the R rows.
        prompts: Prompt log-probabilities wanted.
        drafts: Lanes with guesses.
        passes: Lanes of whose rows distributions are wanted.
    """

    rows: Sequence[int]
    sampling: Sequence[int]
    sample_rows: Sequence[int]
    prompts: Sequence[PromptReadout] = ()
    drafts: Sequence[DraftRows] = ()
    passes: Sequence[PassRows] = ()

    @property
    def is_plain(self) -> bool:
        """All rows are sampled from, in order."""
        return not (self.prompts or self.drafts or self.passes)


def readout_rows(lanes: Sequence[Lane], query_starts: Sequence[int]) -> ReadoutRows:
    """Chooses the rows; query_starts are L + 1 offsets of the lanes' rows."""
    if any(lane.reads_prompt or lane.drafts or lane.reads for lane in lanes):
        return _with_more(lanes, query_starts)
    sampling = [place for place, lane in enumerate(lanes) if lane.samples]
    return ReadoutRows([query_starts[place + 1] - 1 for place in sampling], sampling, range(len(sampling)))


def _with_more(lanes: Sequence[Lane], query_starts: Sequence[int]) -> ReadoutRows:
    rows: list[int] = []
    sampling, sample_rows, prompts, drafts, passes = [], [], [], [], []
    for place, lane in enumerate(lanes):
        if lane.reads_prompt:
            prompts.append(_prompt_readout(place, lane, query_starts[place], rows))
        if lane.reads:
            passes.append(PassRows(place, len(rows), len(rows) + len(lane.reads), lane.first_read))
            rows.extend([query_starts[place] + row for row in lane.reads])
        if lane.samples:
            sampling.append(place)
            sample_rows.append(len(rows))
            rows.append(query_starts[place + 1] - 1 - len(lane.drafts))
        if lane.drafts:
            drafts.append(DraftRows(place, len(rows), lane.drafts))
            rows.extend(range(query_starts[place + 1] - len(lane.drafts), query_starts[place + 1]))
    return ReadoutRows(rows, sampling, sample_rows, prompts, drafts, passes)


def _prompt_readout(place: int, lane: Lane, first: int, rows: list[int]) -> PromptReadout:
    """Adds the lane's prompt rows to `rows`."""
    sequence = lane.sequence
    stop = min(lane.stop, sequence.num_prompt - 1)
    begin, start = len(rows), max(lane.start, sequence.first_scored)
    rows.extend(range(first + start - lane.start, first + stop - lane.start))
    return PromptReadout(
        lane=place,
        first=begin,
        last=len(rows),
        targets=sequence.token_ids[start + 1 : stop + 1],
        num_top=sequence.request.prompt_logprobs or 0,
    )
