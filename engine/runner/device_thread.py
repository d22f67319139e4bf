"""The one thread in which all device work starts, in the order it was handed over."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import msgspec
import torch

Result = TypeVar("Result")
_Outcome = SimpleQueue[tuple[Any, BaseException | None]]


class _Call(msgspec.Struct, frozen=True, eq=False):
    """What to do, and where its result or error is waited for."""

    prepare: Callable[[], None]
    compute: Callable[[], Any]
    outcome: _Outcome


class DeviceThread:
    """Runs calls one after the other, in torch's inference mode.

    Whoever waits for a call wants the interpreter as soon as it is woken, and would keep the next call from its start:
    it is woken when the next call is prepared and about to compute, or at once if there is none. Handing over and
    waiting are a plain queue each, which costs a tenth of what an executor's futures do. The thread ends with its
    owner: when that is closed, collected, or the interpreter exits.

    Args:
        num_threads: Threads of one torch operation; None leaves torch's choice.
        rest: Called behind a call when no other waits; must not raise.
    """

    def __init__(self, num_threads: int | None = None, rest: Callable[[], None] | None = None) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._calls, num_threads, rest), name="device", daemon=True
        )
        self._thread.start()
        self._end = weakref.finalize(self, self._calls.put, None)

    def submit(self, prepare: Callable[[], None], compute: Callable[[], Result]) -> Callable[[], Result]:
        """Queues a call.

        Args:
            prepare: Short; runs before the waiter for the call before is woken.
            compute: Long; lets other threads run Python meanwhile.

        Returns:
            Waits for the call and returns what `compute` did, or raises the error of either; to be called once.

        Raises:
            RuntimeError: The thread was closed.
        """
        if not self._end.alive:
            raise RuntimeError("the device thread was closed")
        outcome: _Outcome = SimpleQueue()
        self._calls.put(_Call(prepare, compute, outcome))
        return partial(_wait, outcome)

    def close(self) -> None:
        """Waits for what was submitted and ends the thread. Idempotent."""
        self._end()
        self._thread.join()


def _wait(outcome: _Outcome) -> Any:
    result, error = outcome.get()
    if error is not None:
        raise error
    return result


def _serve(calls: SimpleQueue[_Call | None], num_threads: int | None, rest: Callable[[], None] | None) -> None:
    if num_threads is not None:
        torch.set_num_threads(num_threads)  # OpenMP's thread count belongs to the calling thread
    tell = _nothing
    with torch.inference_mode():
        while True:
            if calls.empty():
                tell()
                tell = _nothing
                if rest is not None:
                    rest()
            call = calls.get()
            if call is None:
                tell()
                return
            tell = _run(call, tell)
            call = None  # or it would keep its owner alive, and with it this thread


def _run(call: _Call, tell_last: Callable[[], None]) -> Callable[[], None]:
    """Runs a call and returns what wakes its waiter."""
    result, error = None, None
    try:
        try:
            call.prepare()
        finally:
            tell_last()
        result = call.compute()
    except BaseException as caught:
        error = caught
    return partial(call.outcome.put, (result, error))


def _nothing() -> None:
    """There is nobody to wake."""
