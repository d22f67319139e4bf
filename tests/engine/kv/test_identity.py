"""Page keys: equal exactly when everything that determines a page's content is equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv.identity import KEY_BYTES, page_key, root_key

PARTS = st.text(max_size=4)


def _root(parts: tuple[str, str, str, str]) -> bytes:
    fingerprint, kv_dtype, adapter, salt = parts
    return root_key(fingerprint=fingerprint, kv_dtype=kv_dtype, adapter=adapter, salt=salt)


@given(st.tuples(PARTS, PARTS, PARTS, PARTS), st.tuples(PARTS, PARTS, PARTS, PARTS))
def test_roots_are_equal_exactly_when_every_part_is(left: tuple[str, ...], right: tuple[str, ...]) -> None:
    assert (_root(left) == _root(right)) == (left == right)  # type: ignore[arg-type]  # four strings each


def test_parts_do_not_collide_by_joining() -> None:
    assert _root(("ab", "c", "", "")) != _root(("a", "bc", "", ""))


def test_a_page_is_named_by_its_tokens_and_all_before_it() -> None:
    root = _root(("model", "bfloat16", "", ""))
    first, other = page_key(root, [1, 2]), page_key(root, [1, 3])
    assert len(first) == KEY_BYTES
    assert first != other
    assert page_key(first, [4, 5]) != page_key(other, [4, 5])
    assert page_key(root, [1, 2]) == first
