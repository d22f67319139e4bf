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
    """What edits free, in the order in which it may be freed; no two overlap.

    A page that several edits cover together is free with the last of them.
    """
    gaps: list[Gap] = []
    freed: set[int] = set()
    pieces: dict[int, list[tuple[int, int]]] = {}
    for edit in sorted(edits, key=lambda edit: edit.since):
        start, stop = edit.start, min(edit.stop, edit.since)
        if edit.drops and start < stop:
            pages = set(range(-(-start // page_size), stop // page_size))
            for page in {start // page_size, (stop - 1) // page_size} - pages - freed:
                pieces.setdefault(page, []).append((start, stop))
                if _is_covered(page * page_size, (page + 1) * page_size, pieces[page]):
                    pages.add(page)
            pages -= freed
            freed |= pages
            gaps += [Gap(low * page_size, high * page_size, edit.since) for low, high in _runs(sorted(pages))]
    return gaps


def num_plain(edits: Sequence[Edit], gaps: Sequence[Gap]) -> int:
    """Leading tokens whose KV lies where, and is what, it would be without edits; `gaps` are those freed already."""
    return min((*(edit.since for edit in edits), *(gap.start for gap in gaps)), default=NEVER)


def num_dropped(gaps: Iterable[Gap]) -> int:
    """Tokens in gaps."""
    return sum(gap.stop - gap.start for gap in gaps)


def _is_covered(start: int, stop: int, pieces: Iterable[tuple[int, int]]) -> bool:
    for low, high in sorted(pieces):
        if low > start:
            return False
        start = max(start, high)
        if start >= stop:
            return True
    return False


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Rising numbers as runs, ends excluded."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
