"""The one thread in which all device work starts, in the order it was handed over."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_Call = tuple[Callable[[], Any], "SimpleQueue[tuple[Any, BaseException | None]]"]
"""What to do, and where its result or error is waited for."""


class DeviceThread:
    """Runs calls one after the other, in torch's inference mode.

    Handing over and waiting are a queue each, which costs a tenth of what an executor's futures do. The thread ends
    with its owner: when that is closed, collected, or the interpreter exits.

    Args:
        num_threads: Threads of one torch operation; None leaves torch's choice.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls, num_threads), name="device", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._calls.put, None)

    def submit(self, call: Callable[[], Result]) -> Callable[[], Result]:
        """Queues a call.

        Returns:
            Waits for the call and returns its result, or raises its error; to be called once.

        Raises:
            RuntimeError: The thread was closed.
        """
        if not self._end.alive:
            raise RuntimeError("the device thread was closed")
        outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._calls.put((call, outcome))

        def wait() -> Result:
            result, error = outcome.get()
            if error is not None:
                raise error
            return result  # type: ignore[no-any-return]  # what `call` returned

        return wait

    def close(self) -> None:
        """Waits for what was submitted and ends the thread. Idempotent."""
        self._end()
        self._thread.join()


def _serve(calls: SimpleQueue[_Call | None], num_threads: int | None) -> None:
    if num_threads is not None:
        torch.set_num_threads(num_threads)  # OpenMP's thread count belongs to the calling thread
    with torch.inference_mode():
        while (work := calls.get()) is not None:
            call, outcome = work
            try:
                outcome.put((call(), None))
            except BaseException as error:
                outcome.put((None, error))
            del work, call, outcome  # or the last call would keep its owner alive, and with it this thread
