"""Waiting for several things that are made ready beside the engine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

Made = TypeVar("Made")


def behind(first: Future[None], second: Future[Made]) -> Future[Made]:
    """What `second` comes to, once `first` has come to its end as well; the error of either.

    To cancel what is returned gives up waiting, and nothing else.
    """
    both: Future[Made] = Future()

    def settle(_: object) -> None:
        if not both.set_running_or_notify_cancel():
            return
        try:
            first.result()
            both.set_result(second.result())
        except BaseException as error:
            both.set_exception(error)

    first.add_done_callback(lambda _: second.add_done_callback(settle))
    return both
