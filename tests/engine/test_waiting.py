"""Waiting for two things that are made ready beside the engine."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from engine.waiting import behind


@pytest.mark.parametrize("order", ["first", "second"])
def test_both_must_have_come_to_their_end(order: str) -> None:
    first: Future[None] = Future()
    second: Future[int] = Future()
    both = behind(first, second)
    if order == "first":
        first.set_result(None)
        assert not both.done()
        second.set_result(7)
    else:
        second.set_result(7)
        assert not both.done()
        first.set_result(None)
    assert both.result() == 7


@pytest.mark.parametrize("which", ["first", "second"])
def test_the_error_of_either_is_that_of_both(which: str) -> None:
    first: Future[None] = Future()
    second: Future[int] = Future()
    both = behind(first, second)
    if which == "first":
        first.set_exception(ValueError("no weights"))
        second.set_result(7)
    else:
        first.set_result(None)
        second.set_exception(ValueError("no weights"))
    with pytest.raises(ValueError, match="no weights"):
        both.result()


def test_who_gives_up_waiting_disturbs_nobody() -> None:
    first: Future[None] = Future()
    second: Future[int] = Future()
    given_up, other = behind(first, second), behind(first, second)
    assert given_up.cancel()
    first.set_result(None)
    second.set_result(7)
    assert other.result() == 7
