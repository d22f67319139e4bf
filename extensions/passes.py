"""One token made of what the model says behind rows of several contexts; the contexts do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.errors import EngineStopped
from engine.request import LanePass, Probe, Proposal, SiteChange
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class PassLane:
    """Tokens that could follow a context, and which of them are read.

    Attributes:
        context: What they follow.
        token_ids: The tokens.
        rows: Which of them are read, rising.
        positions: Their rotary positions; None for those that follow the history's.
        sights: For each of them the slots that it sees; empty if they are like any others.
        changes: What adapters do to them; with positions.
        proposals: Of a guess that is judged: what the tokens but the first were drawn from, if they were.
    """

    context: LiveContext
    token_ids: Sequence[int]
    rows: Sequence[int]
    positions: Sequence[int] | None = None
    sights: Sequence[bytes] = ()
    proposals: Sequence[Proposal] = ()
    changes: Sequence[SiteChange] = ()


@dataclass(frozen=True, slots=True)
class RowDraw:
    """What came of a pass.

    Attributes:
        token_id: What the program drew.
        probes: What it noted down.
        attention: What the rows attend to, if that was asked; see `TokenEvent`.
    """

    token_id: int
    probes: Mapping[str, Probe]
    attention: Sequence[bytes] = ()


async def draw_from_rows(lanes: Sequence[PassLane], options: GenerateOptions) -> RowDraw:
    """The token that a program draws from the rows of a pass, and what it notes down.

    Args:
        lanes: The program's lanes are their rows, one after the other.
        options: With the program, for one token.

    Raises:
        ValueError: A context is released or busy, or an id is outside of the vocabulary.
        InvalidRequest: A row, position or sight cannot be, or the tokens do not fit.
        QueueFull: Too many requests wait already.
        EngineStopped: No engine is there, or it ended meanwhile.
    """
    branches = [lane.context.fork()[0] for lane in lanes]
    try:
        return await draw_once(
            [replace(lane, context=branch) for lane, branch in zip(lanes, branches, strict=True)], options
        )
    finally:
        for branch in branches:
            branch.release()


async def draw_once(lanes: Sequence[PassLane], options: GenerateOptions) -> RowDraw:
    """The same on contexts that nobody needs afterwards: they are to be released then. See `draw_from_rows`."""
    passes = []
    for lane in lanes:
        shape = lane.context.shape_of(lane.token_ids, lane.positions, lane.sights)
        rows = [lane.context.length + row for row in lane.rows]
        passes.append(LanePass(rows, shape, list(lane.proposals), list(lane.changes)))
        lane.context.append(lane.token_ids)
    first, *others = [lane.context for lane in lanes]
    async with await first.generate(options, beside=others, passes=passes) as generation:
        async for step in generation:
            if step.finish_reason == "abort":
                break
            if step.token_ids:
                probes = generation.probes[0] if generation.probes else {}
                return RowDraw(step.token_ids[0], probes, generation.attention)
    raise EngineStopped("the engine gave a pass up")
