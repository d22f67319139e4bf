"""What lanes that draw within a language may draw, worked out while their step runs already."""

from __future__ import annotations

from engine.constraints.constraint import ConstraintBroken, TokenMask
from engine.constraints.masks import Masks
from engine.drafting.masks import draft_masks
from engine.request import TokenEvent
from engine.scheduling.batch import Batch
from engine.scheduling.finishing import Finishing
from engine.stats import EngineStats


def constrain(batch: Batch, finishing: Finishing, totals: EngineStats) -> tuple[Masks, list[TokenEvent]]:
    """The masks of a batch's constrained lanes; to be called once all steps before it are applied.

    Where the next tokens are certain they are appended at once, and what the lane draws is void: the next step computes
    all of them together.

    Args:
        batch: A step that has begun; lanes whose tokens were certain draw nothing from here on.
        finishing: Appends what is certain, and ends those whose language is broken.
        totals: Counts tokens that were certain.

    Returns:
        The masks, and what there is to tell callers.
    """
    masks: dict[tuple[int, int], TokenMask] = {}
    events = []
    for lane in batch.constrained:
        sequence = lane.sequence
        if not sequence.is_running or lane.run != sequence.runs:
            continue  # it ended, or gave its pages back; what it draws is void
        assert sequence.constraint is not None
        try:
            forced = [] if lane.drafts else sequence.forced_tokens()
            if forced:
                sequence.constraint.advance(forced)
            else:
                for depth, mask in enumerate(draft_masks(sequence.constraint, lane.drafts)):
                    if mask is not None:
                        masks[lane.row, depth] = mask
        except ConstraintBroken as error:
            events.append(finishing.end_with(sequence, error))
            continue
        if forced:
            totals.num_forced_tokens += len(forced)
            lane.samples = False
            sequence.num_in_flight -= 1
            events.append(finishing.append(sequence, forced))
    return masks, events
