"""What a step costs the host beside the model: `python -m loadtests.host_step`. Imports nothing of the gateway.

A model that computes nothing runs under the real loop, scheduler, runner, sampler and server. Processor time is
counted, not time on the wall, so that a busy machine disturbs little; `gap` is the time on the wall from the end of
one call of the model to the begin of the next, and the device `waits` where the next was not handed over by then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.loop import EngineLoop
from engine.request import GenerateRequest
from engine.runner import runner
from engine.runner.inputs import InputStager
from engine.runner.runner import ModelRunner
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Sampler
from engine.scheduling.scheduler import Scheduler
from engine.server import EngineServer, bound_socket
from loadtests.driver import PromptSource
from loadtests.idle_model import NUM_PAGES, VOCAB, IdleEngine, IdleModel, StepMark
from loadtests.results import report
from loadtests.stopwatch import Stopwatch
from loadtests.tables import Table

PARTS: list[tuple[str, Any, str]] = [
    ("loop", EngineLoop, "step"),
    ("schedule", Scheduler, "schedule"),
    ("submit", ModelRunner, "submit"),
    ("stage", InputStager, "stage"),
    ("prepare", ModelRunner, "_prepare"),
    ("compute", ModelRunner, "_compute"),
    ("model", IdleModel, "forward"),
    ("sample", Sampler, "sample"),
    ("fetch", runner, "fetch"),
    ("unfold", runner, "lane_results"),
    ("apply", Scheduler, "apply"),
    ("commands", EngineServer, "_take_commands"),
    ("route", EngineServer, "_route"),
    ("send", EngineServer, "_send_frames"),
]
"""Name, owner and function of each part; a function's time excludes that of the others it calls."""

Run = Callable[[], dict[str, float]]


def run_loop(loop: EngineLoop, options: argparse.Namespace, width: int) -> dict[str, float]:
    """Drives the loop itself until every sequence has ended."""
    sampling = SamplingParams(max_tokens=options.output, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(PromptSource(VOCAB, width).draw(width, options.prompt)):
        loop.submit(GenerateRequest(request_id=f"host-{index}", prompt_ids=prompt, sampling=sampling))
    while loop.has_work:
        loop.step()
    return {}


def run_server(loop: EngineLoop, options: argparse.Namespace, width: int) -> dict[str, float]:
    """Serves the loop to a client in another process until that has read everything; returns what it says."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="wye-") as directory:
        endpoint = f"ipc://{directory}/engine.sock"
        sizes = ["--width", str(width), "--prompt", str(options.prompt), "--output", str(options.output)]
        with bound_socket(endpoint) as socket:
            command = [sys.executable, "-m", "loadtests.drain", endpoint, *sizes]
            client = subprocess.Popen(command, stdout=subprocess.PIPE)
            waiter = threading.Thread(target=_close_after, args=(client, writer))
            waiter.start()
            try:
                EngineServer(loop, socket, parent=reader).run()
            finally:
                client.kill()
                waiter.join()
                os.close(reader)
        output, _ = client.communicate()
    if client.returncode != 0:
        raise RuntimeError(f"the client ended with {client.returncode}")
    heard: dict[str, float] = json.loads(output)
    if heard["num_tokens"] != width * options.output:
        raise RuntimeError(f"the client read {heard['num_tokens']} tokens of {width * options.output}")
    return heard


def _close_after(client: subprocess.Popen[bytes], writer: int) -> None:
    """Ends the server, whose parent this pipe stands for, once the client has ended."""
    client.wait()
    os.close(writer)


def measure(options: argparse.Namespace, width: int, *, served: bool, watch: Stopwatch | None) -> dict[str, Any]:
    """One run of one width.

    Args:
        options: Of the command.
        width: Sequences.
        served: Behind the server, or the loop alone.
        watch: Counts the parts; it costs time itself.
    """
    model = IdleModel(options.work, options.work_ms)
    engine = IdleEngine(
        model=model, width=width, overlap=not options.no_overlap, num_pages=options.pages, is_full=options.full
    )
    loop = engine.loop
    try:
        heard = (run_server if served else run_loop)(loop, options, width)
    finally:
        loop.close()
    marks = list(zip(model.marks, engine.runner.submitted_ns, strict=True))
    row: dict[str, Any] = {"width": width, "served": served}
    row |= _per_step([(mark, at_ns) for mark, at_ns in marks if mark.rows == width][5:-5])
    if served:
        row["client_us"] = heard["cpu_s"] * 1e6 / options.output
    if watch is not None:
        row["parts"] = {name: watch.totals_ns[name] / len(model.marks) / 1000 for name, _, _ in PARTS}
    return row


def _per_step(submitted: Sequence[tuple[StepMark, int]]) -> dict[str, float]:
    steps = [step for step, _ in submitted]
    late = sum(step.end_ns < at_ns for (step, _), (_, at_ns) in itertools.pairwise(submitted))
    count = len(steps) - 1
    spent_ns = steps[-1].process_ns - steps[0].process_ns - sum(step.own_ns for step in steps[:-1])
    gaps_us = sorted((after.start_ns - before.end_ns) / 1000 for before, after in itertools.pairwise(steps))
    return {
        "steps": count,
        "cpu_us": spent_ns / count / 1000,
        "gap_us_p50": statistics.median(gaps_us),
        "gap_us_p95": gaps_us[int(0.95 * count)],
        "waits_percent": 100 * late / count,
        "period_us": (steps[-1].start_ns - steps[0].start_ns) / count / 1000,
    }


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every width, the loop alone and behind the server; the fastest of some rounds, then once more by part."""
    rows = []
    for served in (False, True):
        for width in options.widths:
            rounds = [measure(options, width, served=served, watch=None) for _ in range(options.rounds)]
            best = min(rounds, key=lambda row: row["cpu_us"])
            with Stopwatch() as watch:
                for name, owner, attribute in PARTS:
                    watch.wrap(owner, attribute, name)
                best["parts"] = measure(options, width, served=served, watch=watch)["parts"]
            rows.append(best)
    return rows


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    command = argparse.ArgumentParser(
        prog="python -m loadtests.host_step", description="Measure what a step costs the host beside the model."
    )
    command.add_argument("--widths", type=int, nargs="+", default=[1, 8, 32, 64], help="sequences decoded together")
    command.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    command.add_argument("--output", type=int, default=512, help="tokens to generate for each sequence")
    command.add_argument("--rounds", type=int, default=3, help="the fastest of as many is reported")
    command.add_argument("--work", choices=["none", "sleep", "busy"], default="none", help="what the model does")
    command.add_argument("--work-ms", type=float, default=5.0, help="for how long, in milliseconds")
    command.add_argument("--pages", type=int, default=NUM_PAGES, help="pages of the KV pool")
    command.add_argument("--full", action="store_true", help="all pages hold what has ended before")
    command.add_argument("--no-overlap", action="store_true", help="do not prepare a step while another runs")
    command.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    command.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = parser().parse_args(argv)
    rows = measure_all(options)
    settings = {"work": options.work, "work_ms": options.work_ms, "overlap": not options.no_overlap}
    settings |= {"pages": options.pages, "full": options.full}
    report(
        [_step_table(rows), _parts_table(rows)],
        {"settings": settings, "rows": rows, "rounds": options.rounds},
        json_path=options.json,
        markdown=options.markdown,
    )
    return 0


def _step_table(rows: Sequence[dict[str, Any]]) -> Table:
    numbers_of = {
        "engine CPU, us": "cpu_us",
        "client CPU, us": "client_us",
        "gap p50, us": "gap_us_p50",
        "gap p95, us": "gap_us_p95",
        "device waits, %": "waits_percent",
        "period, us": "period_us",
    }
    table = Table(title="A step without its model", headers=["engine", "width", *numbers_of])
    for row in rows:
        numbers = [row.get(key) for key in numbers_of.values()]
        table.add("served" if row["served"] else "loop", row["width"], *numbers)
    return table


def _parts_table(rows: Sequence[dict[str, Any]]) -> Table:
    names = [name for name, _, _ in PARTS]
    table = Table(title="Processor time by part, us a step, measuring included", headers=["engine", "width", *names])
    for row in rows:
        parts = [row["parts"][name] or None for name in names]
        table.add("served" if row["served"] else "loop", row["width"], *parts)
    return table


if __name__ == "__main__":
    sys.exit(main())
