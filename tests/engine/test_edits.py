"""What dropped spans free: whole pages, whichever spans cover them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.contexts.edits import Edit, gaps_of

PAGE = 4


@st.composite
def edits(draw: st.DrawFn) -> list[Edit]:
    made = []
    length = draw(st.integers(2, 12))
    for _ in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, length - 1))
        stop = draw(st.integers(start + 1, length))
        made.append(Edit(start, stop, length - 1, draw(st.booleans())))
        length += draw(st.integers(0, 6))
    return made


def freed_at(page: int, made: list[Edit]) -> int | None:
    """The first position from which on no row needs a page: all that is in it is dropped for all that follows."""
    worst = -1
    for position in range(page * PAGE, (page + 1) * PAGE):
        hidden = [edit.since for edit in made if edit.drops and edit.start <= position < min(edit.stop, edit.since)]
        if not hidden:
            return None
        worst = max(worst, min(hidden))
    return worst


@given(edits())
def test_a_page_is_free_once_spans_cover_it_together(made: list[Edit]) -> None:
    gaps = gaps_of(made, PAGE)
    found = {page: gap.since for gap in gaps for page in range(gap.start // PAGE, gap.stop // PAGE)}
    assert sum(gap.stop - gap.start for gap in gaps) == len(found) * PAGE
    wanted = {page: freed_at(page, made) for page in range(12 * PAGE)}
    assert found == {page: since for page, since in wanted.items() if since is not None}


def test_spans_that_follow_each_other_free_the_page_between_them() -> None:
    gaps = gaps_of([Edit(2, 10, 20, True), Edit(10, 14, 24, True)], PAGE)
    assert [(gap.start, gap.stop, gap.since) for gap in gaps] == [(4, 8, 20), (8, 12, 24)]
