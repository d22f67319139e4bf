"""What may be drawn at each place of a guess, in a language."""

from __future__ import annotations

from collections.abc import Sequence

from engine.constraints.constraint import Constraint, ConstraintBroken, TokenMask


def draft_masks(constraint: Constraint, drafts: Sequence[int]) -> list[TokenMask | None]:
    """Masks for a draw and those behind a guess, as far as the guess belongs to the language; None where all is free.

    Args:
        constraint: At the place of the first draw; stays there.
        drafts: The guess, often none.

    Raises:
        ConstraintBroken: Nothing can be drawn at all, or finding out would take too long.
    """
    mask = constraint.mask()
    masks = [mask]
    ahead = constraint.fork() if drafts else constraint
    for token_id in drafts:
        if mask is not None and not mask[token_id // 32] >> token_id % 32 & 1:
            break
        try:
            ahead.advance((token_id,))
            if ahead.is_complete:
                break
            mask = ahead.mask()
        except ConstraintBroken:
            break
        masks.append(mask)
    return masks
