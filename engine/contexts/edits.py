"""Which tokens of a history do not see which others: a recipe that its owner writes and the engine follows.

An edit says that tokens from position `since` on do not see positions start..stop-1. What lies before `since` was, or
will be, computed as if there were no edit, so the KV of a history is a function of its tokens and its edits alone: it
can be given up and computed again.

    position   0      start      stop            since       length
               |--------|~~~~~~~~~|----------------|-----------|
    sees the span                    all of these  |  none of these (each token still sees itself)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

NEVER = 2**62
"""A position that no history reaches."""


class Edit(msgspec.Struct, frozen=True, array_like=True):
    """One span that later tokens do not see.

    Attributes:
        start, stop: The span, stop excluded.
        since: First position that does not see it.
        drops: Whole pages inside the span are freed once everything before `since` is computed.
    """

    start: int
    stop: int
    since: int
    drops: bool = False


class Gap(msgspec.Struct, frozen=True):
    """Whole pages that an edit frees.

    Attributes:
        start, stop: Positions, multiples of the page size.
        since: First position that does not need them.
    """

    start: int
    stop: int
    since: int


def add_edit(edits: Sequence[Edit], start: int, stop: int, length: int, *, drops: bool) -> tuple[Edit, ...]:
    """Hides a span from the next prediction on: the last token is computed again without it."""
    if start == stop:
        return tuple(edits)
    return (*edits, Edit(start, stop, length - 1, drops))


def cut_edits(edits: Sequence[Edit], length: int) -> tuple[Edit, ...]:
    """The edits of a history that is cut; they hold for what follows its new end."""
    return tuple(
        Edit(edit.start, min(edit.stop, length), min(edit.since, length - 1), edit.drops)
        for edit in edits
        if edit.start < length
    )


def gaps_of(edits: Sequence[Edit], page_size: int) -> list[Gap]:
    """What edits free, in the order in which it may be freed; no two overlap."""
    gaps: list[Gap] = []
    freed: set[int] = set()
    for edit in sorted(edits, key=lambda edit: edit.since):
        if edit.drops:
            first, last = -(-edit.start // page_size), min(edit.stop, edit.since) // page_size
            pages = [page for page in range(first, last) if page not in freed]
            freed.update(pages)
            gaps += [Gap(low * page_size, high * page_size, edit.since) for low, high in _runs(pages)]
    return gaps


def num_plain(edits: Sequence[Edit], gaps: Sequence[Gap]) -> int:
    """Leading tokens whose KV lies where, and is what, it would be without edits; `gaps` are those freed already."""
    return min((*(edit.since for edit in edits), *(gap.start for gap in gaps)), default=NEVER)


def num_dropped(gaps: Iterable[Gap]) -> int:
    """Tokens in gaps."""
    return sum(gap.stop - gap.start for gap in gaps)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Rising numbers as runs, ends excluded."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
