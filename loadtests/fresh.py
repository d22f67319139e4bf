"""Work in a process of its own, so that what it measures of memory, compiling or tracing starts from nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh_process(function: Callable[..., T], *args: Any) -> T:
    """Calls a function of a module in a new process and returns what it returns, which like `args` is copied.

    Raises:
        BrokenProcessPool: The process died.
        Exception: What the function raised.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()
