"""What an open stream costs while nothing happens on it: `python -m loadtests.idle_streams`.

A server that runs one sequence at a time is kept busy, so that all further streams have been accepted and wait. The
memory of its processes is compared before and after they were opened; then all clients leave at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from loadtests.client import Target, complete
from loadtests.results import report
from loadtests.server import running_server
from loadtests.tables import Table
from loadtests.workload import Lengths, Request, Workload


def resident_mib(pid: int) -> dict[int, float]:
    """MiB resident in a process and each of its descendants, by pid."""
    root = psutil.Process(pid)
    resident: dict[int, float] = {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            resident[process.pid] = process.memory_info().rss / 2**20
    return resident


def command_name(pid: int) -> str:
    """Short name of a process for the table."""
    words = psutil.Process(pid).cmdline()
    return " ".join(Path(word).name for word in words[:4])[:60]


async def hold_streams(target: Target, num_streams: int, settle_s: float, pid: int) -> dict[int, tuple[float, float]]:
    """Opens the streams, lets them settle, and returns MiB before and during, by pid."""
    workload = Workload(num_requests=num_streams, prompt=Lengths.parse("32"), output=Lengths.parse("256"), seed=1)
    busy = Request(arrival_s=0.0, prompt_ids=tuple(range(1000, 1032)), max_tokens=1500, seed=0)
    await complete(target, Request(arrival_s=0.0, prompt_ids=busy.prompt_ids, max_tokens=4, seed=0))
    before = resident_mib(pid)
    tasks = [asyncio.create_task(complete(target, busy))]
    tasks += [asyncio.create_task(complete(target, request)) for request in workload.requests()]
    try:
        await asyncio.sleep(settle_s)
        during = resident_mib(pid)
        ended = [task.result().error for task in tasks if task.done()]
        if any(ended):
            raise RuntimeError(f"a stream failed: {next(error for error in ended if error)}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {process: (before[process], during[process]) for process in before if process in during}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.idle_streams", description="Measure the memory of idle open streams."
    )
    parser.add_argument("--model", default="smollm2-135m", help="model to serve")
    parser.add_argument("--streams", type=int, default=500, help="streams to hold open")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds to wait before memory is read")
    parser.add_argument("--serve-args", default="--max-num-seqs 1", help="options that keep the streams waiting")
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    with running_server(options.model, args=options.serve_args.split()) as server:
        target = Target.parse(server.url, server.model)
        held = asyncio.run(hold_streams(target, options.streams, options.settle, server.pid))
        names = {pid: command_name(pid) for pid in held}
    table = Table(
        title=f"{options.streams} idle streams", headers=["process", "before, MiB", "during, MiB", "growth, MiB"]
    )
    rows = []
    for pid, (before, during) in held.items():
        table.add(names[pid], before, during, during - before)
        rows.append({"process": names[pid], "before_mib": before, "during_mib": during, "growth_mib": during - before})
    report(
        [table],
        {"streams": options.streams, "processes": rows},
        json_path=options.json,
        markdown=options.markdown,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
