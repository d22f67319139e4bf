"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.stopping import StopMatch, StopMatcher, StopStrings

SMALL = st.text(alphabet="abc🙂", max_size=12)
STOPS = st.lists(st.text(alphabet="abc🙂", min_size=1, max_size=5), max_size=5)


def search(
    pieces: list[str], stops: list[str], *, include_stop: bool = False, num_inactive: int = 0
) -> tuple[str, StopMatch | None, list[str]]:
    """Pushes pieces, the first ones inactive, until a match or the end; returns all visible text."""
    matcher = StopMatcher(StopStrings(stops), include_stop=include_stop)
    shown = []
    for at, piece in enumerate(pieces):
        visible, match = matcher.push(piece, active=at >= num_inactive)
        shown.append(visible)
        if match is not None:
            return "".join(shown), match, shown
    return "".join(shown) + matcher.flush(), None, shown


def plainly(text: str, stops: list[str], first_end: int = 0) -> StopMatch | None:
    """The rule in its plainest form: the match that completes first, the longest of those."""
    ends = range(max(1, first_end), len(text) + 1)
    found = [StopMatch(stop, end - len(stop), end) for end in ends for stop in stops if text[:end].endswith(stop)]
    return min(found, key=lambda match: (match.end, match.start), default=None)


@given(pieces=st.lists(SMALL, max_size=6), stops=STOPS, include_stop=st.booleans())
def test_any_cut_of_the_text_gives_the_plain_answer(pieces: list[str], stops: list[str], include_stop: bool) -> None:
    text = "".join(pieces)
    expected = plainly(text, stops)
    shown, match, _ = search(pieces, stops, include_stop=include_stop)
    assert match == expected
    assert search([text], stops, include_stop=include_stop)[:2] == (shown, match)
    if expected is None:
        assert shown == text
    else:
        assert shown == text[: expected.end if include_stop else expected.start]


@given(inactive=st.lists(SMALL, max_size=3), active=st.lists(SMALL, max_size=3), stops=STOPS)
def test_a_match_may_begin_but_not_end_in_inactive_text(
    inactive: list[str], active: list[str], stops: list[str]
) -> None:
    text = "".join(inactive + active)
    _, match, _ = search(inactive + active, stops, num_inactive=len(inactive))
    assert match == plainly(text, stops, first_end=len("".join(inactive)) + 1)


@given(pieces=st.lists(SMALL, max_size=6), stops=STOPS)
def test_shown_text_never_begins_a_stop_string_and_nothing_else_is_held(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    text = shown = ""
    for piece in pieces:
        visible, match = matcher.push(piece)
        text, shown = text + piece, shown + visible
        if match is not None:
            return
        held = text[len(shown) :]
        could_begin = [text[at:] for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in stops)]
        assert held == max(could_begin, key=len, default="")


@pytest.mark.parametrize(
    ("stops", "text", "visible"),
    [
        (["DEFGHIJ"], "ABCDEFGHIJKL", "ABC"),
        (["beta gamma"], "alpha beta gamma delta", "alpha "),
        (["wor"], "hello world", "hello "),
        ([".."], "wait... go", "wait"),
        (["ZZZZZZ"], "a < b ZZ end", "a < b ZZ end"),
        (["abc", "b"], "xabc", "xa"),
        (["bc", "abc"], "xabc", "x"),
        (["aab"], "aaab", "a"),
        (["]", "^", "-", "\\"], "a-b", "a"),
    ],
)
def test_known_cases_in_every_single_cut(stops: list[str], text: str, visible: str) -> None:
    for at in range(len(text) + 1):
        assert search([text[:at], text[at:]], stops)[0] == visible
    assert search(list(text), stops)[0] == visible


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(["x", ""])


def test_without_stop_strings_text_passes_through() -> None:
    matcher = StopMatcher(StopStrings([]))
    assert matcher.push("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_a_thousand_long_stop_strings_make_few_nodes() -> None:
    stops = StopStrings([f"{'a' * 299}{at:04d}" for at in range(1000)])
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push("a" * 50)[0] for _ in range(100))
    assert len(shown) == 5000 - 299
    assert matcher.push("0500tail") == ("a" * 0, StopMatch("a" * 299 + "0500", 5000 - 299, 5004))
    node, num_nodes = stops.root, 0
    while node.next.get("a") not in (None, node):
        node, num_nodes = node.next["a"], num_nodes + 1
    assert num_nodes == 299
