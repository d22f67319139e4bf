"""What may be drawn at each place of a guess, in a language."""

from __future__ import annotations

from collections.abc import Sequence

from engine.constraints.constraint import Constraint, ConstraintBroken, TokenMask


def draft_masks(constraint: Constraint, mask: TokenMask, drafts: Sequence[int]) -> list[TokenMask]:
    """Masks for the draws behind a guess, as far as the guess belongs to the language.

    Args:
        constraint: At the place of the first draw; stays there.
        mask: Of the first draw.
        drafts: The guess.
    """
    masks: list[TokenMask] = []
    ahead = constraint.fork()
    for token_id in drafts:
        if not mask[token_id // 32] >> token_id % 32 & 1:
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
