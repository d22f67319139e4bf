"""Further processes that play gateway workers for `loadtests.programs`, as a server has several of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import uvloop

from engine.connection import EngineConnection
from engine.text.model import TextModel
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions


class Order(msgspec.Struct, frozen=True):
    """What a process is to do.

    Attributes:
        source: Of a program; empty for plain completions.
        places: Which of the requests are its own.
        num_tokens: Of each.
        round_number: Makes prompts new.
        temperature: Of plain completions.
    """

    source: str
    places: range
    num_tokens: int
    round_number: int
    temperature: float = 0.0


Obey = Callable[[Runtime, Order], Awaitable[None]]
"""Runs what an order says, from a function of a module: processes find it by its name."""


class Gateways:
    """Processes over one engine.

    Args:
        orders: Where each takes its orders, and says when it is done.
    """

    def __init__(self, orders: list[Connection]) -> None:
        self._orders = orders

    async def run(self, order: Order) -> float:
        """Shares an order's places among all, and returns the seconds until the last is done.

        Raises:
            RuntimeError: A process failed.
        """
        count = len(self._orders)
        started_s = time.perf_counter()
        for at, one in enumerate(self._orders):
            one.send(msgspec.structs.replace(order, places=order.places[at::count]))
        ends = [await asyncio.to_thread(one.recv) for one in self._orders]
        failed = [end for end in ends if isinstance(end, str)]
        if failed:
            raise RuntimeError(f"a gateway failed: {failed[0]}")
        return float(max(ends)) - started_s


@contextlib.contextmanager
def open_gateways(count: int, endpoint: str, path: Path, max_workers: int, obey: Obey) -> Iterator[Gateways]:
    """Starts processes, and ends them.

    Args:
        count: How many.
        endpoint: Of the engine.
        path: Of the model.
        max_workers: Programs that each runs at once.
        obey: What they do.
    """
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, endpoint, path, max_workers, obey), daemon=True)
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
        for end in ends:
            end.recv()
        yield Gateways(ends)
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join(20)


def as_gateways_do() -> None:
    """What was loaded is not looked at again for garbage, as in a server's workers (`gateway.worker`)."""
    gc.collect()
    gc.freeze()


def _serve(orders: Connection, endpoint: str, path: Path, max_workers: int, obey: Obey) -> None:
    uvloop.run(_obey_all(orders, endpoint, path, max_workers, obey))


async def _obey_all(orders: Connection, endpoint: str, path: Path, max_workers: int, obey: Obey) -> None:
    connection = EngineConnection(endpoint)
    await connection.connect()
    runtime = Runtime(connection, TextModel.load(path), sandbox=PoolOptions(max_workers=max_workers))
    as_gateways_do()
    try:
        orders.send("ready")
        while True:
            order = await asyncio.to_thread(orders.recv)
            try:
                await obey(runtime, order)
            except Exception as error:  # whatever it is, who gave the order wants to know
                orders.send(f"{type(error).__name__}: {error}")
            else:
                orders.send(time.perf_counter())  # the clock of all processes
    except EOFError:
        pass
    finally:
        await runtime.aclose()
        await connection.close()
