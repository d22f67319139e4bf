"""Guessed tokens, verified: the draw behind each guess counts as long as every guess before it was what was drawn.

A draw depends on the logits and on (seed, stream, position) alone, so what comes out is what would have come out token
by token; nothing of the distribution changes, and no rule of acceptance is needed. A guess that says what it was drawn
from is accepted or replaced by chance where its token is drawn (`engine.drafting.acceptance`), or a program judges it
(`engine.drafting.judging`): it counts if it is what came out of that. All that draws remember (penalties, forbidden
sequences, states of programs) is told of each token before the next is drawn.

Letters: R rows read out, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import torch

from engine.constraints.masks import StepMasks
from engine.runner.readout_rows import DraftRows
from engine.sampling.choice import SampleLane
from engine.sampling.masks import LaneMasks
from engine.sampling.sampler import SampledTokens

Draw = Callable[[torch.Tensor, Sequence[SampleLane], LaneMasks | None], SampledTokens]


class Wave(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Draws behind the guesses of one depth.

    Attributes:
        places: Lanes of the batch that are still in.
        sampled: Their tokens.
    """

    places: list[int]
    sampled: SampledTokens


def verify(
    logits: torch.Tensor,
    drafts: Sequence[DraftRows],
    first: dict[int, tuple[SampleLane, int]],
    masks: StepMasks | None,
    draw: Draw,
) -> list[Wave]:
    """Draws on, depth by depth, for the lanes whose guesses were right so far. Waits for the device.

    Args:
        logits: [R, V] float32; may be changed.
        drafts: Lanes with guesses, at least one.
        first: By place in the batch, how the first token of a lane was drawn, and that token.
        masks: What lanes with a constraint may draw at which depth.
        draw: Draws a token for each row, and remembers it.
    """
    waves = []
    constrained = frozenset(() if masks is None else masks.at(0))
    drawn = {draft.lane: first[draft.lane][1] for draft in drafts}
    depth = 0
    while drafts:
        depth += 1
        allowed = {} if masks is None else masks.at(depth)
        drafts = [
            draft
            for draft in drafts
            if len(draft.token_ids) >= depth
            and drawn[draft.lane] == draft.token_ids[depth - 1]
            and (first[draft.lane][0].row not in constrained or first[draft.lane][0].row in allowed)
        ]
        if not drafts:
            break
        lanes = [_deeper(first[draft.lane][0], depth) for draft in drafts]
        rows = torch.tensor([draft.first + depth - 1 for draft in drafts], device=logits.device)
        sampled = draw(logits.index_select(0, rows), lanes, _masks_of(lanes, allowed, masks))
        tokens = sampled.token_ids.tolist()
        drawn = {draft.lane: token_id for draft, token_id in zip(drafts, tokens, strict=True)}
        waves.append(Wave([draft.lane for draft in drafts], sampled))
    return waves


def _deeper(lane: SampleLane, depth: int) -> SampleLane:
    return SampleLane(
        row=lane.row,
        position=lane.position + depth,
        num_output=lane.num_output + depth,
        offers=lane.offers[depth:],
        drafts=lane.drafts[depth:],
    )


def _masks_of(lanes: Sequence[SampleLane], allowed: dict[int, int], masks: StepMasks | None) -> LaneMasks | None:
    """Masks of the lanes that have one; `allowed` are their places among the masks, by row of device state."""
    found = [(at, allowed[lane.row]) for at, lane in enumerate(lanes) if lane.row in allowed]
    if masks is None or not found:
        return None
    return LaneMasks([at for at, _ in found], masks.words[[place for _, place in found]])
