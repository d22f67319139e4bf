"""The device's thread: order, outcomes, and its end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch

from engine.runner.device_thread import DeviceThread


def _nothing() -> None:
    pass


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_calls_run_in_order_and_bring_their_own_results() -> None:
    thread = DeviceThread(1)
    seen: list[str] = []

    def call(number: int) -> Callable[[], int]:
        def compute() -> int:
            seen.append(f"compute {number}")
            return number * number

        return thread.submit(lambda: seen.append(f"prepare {number}"), compute)

    waits = [call(number) for number in range(5)]
    assert [wait() for wait in reversed(waits)] == [16, 9, 4, 1, 0]
    assert seen == [f"{part} {number}" for number in range(5) for part in ("prepare", "compute")]
    thread.close()


@pytest.mark.parametrize("fails_in", ["prepare", "compute"])
def test_an_error_reaches_its_own_caller_alone(fails_in: str) -> None:
    thread = DeviceThread()

    def fail() -> None:
        raise ValueError("broken")

    before = thread.submit(_nothing, lambda: "before")
    broken = thread.submit(fail if fails_in == "prepare" else _nothing, fail if fails_in == "compute" else _nothing)
    after = thread.submit(_nothing, lambda: "after")
    assert before() == "before"
    with pytest.raises(ValueError, match="broken"):
        broken()
    assert after() == "after"
    thread.close()


def test_a_result_is_told_while_the_next_call_computes() -> None:
    thread = DeviceThread()
    told = threading.Event()
    first = thread.submit(_nothing, lambda: 1)
    second = thread.submit(_nothing, lambda: told.wait(60))
    assert first() == 1
    told.set()
    assert second() is True
    thread.close()


def test_calls_compute_in_inference_mode_with_their_number_of_threads() -> None:
    here = torch.get_num_threads()
    thread = DeviceThread(here + 1)
    assert thread.submit(_nothing, lambda: (torch.is_inference_mode_enabled(), torch.get_num_threads()))() == (
        True,
        here + 1,
    )
    assert torch.get_num_threads() == here
    thread.close()


def test_closing_waits_for_what_was_submitted_and_nothing_is_taken_afterwards() -> None:
    thread = DeviceThread()
    done: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        done.append(1)

    thread.submit(_nothing, slow)
    thread.close()
    thread.close()
    assert done == [1]
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit(_nothing, _nothing)


def test_the_thread_ends_with_an_owner_that_nobody_closed() -> None:
    before = set(threading.enumerate())
    thread = DeviceThread()
    (started,) = set(threading.enumerate()) - before
    thread.submit(_nothing, _nothing)()
    del thread
    gc.collect()
    _until(lambda: not started.is_alive())
