"""The engine beside a busy process, and what it costs while nobody asks: `python -m loadtests.busy`.

On a small machine the gateway, Redis or a script worker run on the cores that a step uses. The worst of them is a
process that computes without pause; decoding is measured beside it and without it, in turns. Then a whole server is
left alone for some seconds, and the processor time of all its processes is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from loadtests.client import Target
from loadtests.contest import BatchContestant, Shape
from loadtests.driver import EngineDriver, PromptSource
from loadtests.http_overhead import stream_all
from loadtests.idle_streams import command_name
from loadtests.models import locate
from loadtests.offline import add_engine_options, engine_config
from loadtests.results import report
from loadtests.server import running_server
from loadtests.tables import Table
from loadtests.targets import MIN_BUSY_RATIO, verdict


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[list[int]]:
    """Pids of processes that use a core each while the `with` lasts."""
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(number):
            command = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            pids.append(process.pid)
        yield pids


def measure_width(contestant: BatchContestant, shape: Shape, rounds: int, spinners: int) -> dict[str, Any]:
    """Decoding quiet and beside busy processes, `rounds` times, taking turns in going first."""
    quiet: list[float] = []
    busy: list[float] = []
    for turn in range(rounds):
        for spins in (False, True) if turn % 2 == 0 else (True, False):
            with busy_processes(spinners if spins else 0):
                (busy if spins else quiet).append(contestant.rate(shape))
    return {
        "width": shape.width,
        "quiet_tokens_per_s": statistics.median(quiet),
        "busy_tokens_per_s": statistics.median(busy),
        "ratio": statistics.median(b / q for b, q in zip(busy, quiet, strict=True)),
        "rounds": {"quiet": quiet, "busy": busy},
    }


def cpu_ms(pid: int) -> dict[int, float]:
    """Milliseconds of processor time that a process and each of its descendants have used, by pid."""
    root = psutil.Process(pid)
    used: dict[int, float] = {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process.pid] = 1000 * (times.user + times.system)
    return used


def idle_cost(pid: int, seconds: float) -> list[dict[str, Any]]:
    """Processor time that each process of a tree uses while it is left alone."""
    before = cpu_ms(pid)
    time.sleep(seconds)
    after = cpu_ms(pid)
    return [{"process": command_name(of), "cpu_ms": used - before[of]} for of, used in after.items() if of in before]


def measure_idle(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A server that has answered, left alone."""
    args = ["--weights", options.weights, "--step", options.step, *options.serve_args.split()]
    with running_server(options.model, args=args) as server:
        target = Target.parse(server.url, server.model)
        asyncio.run(stream_all(target, PromptSource(20_000, options.seed).draw(2, 64), 16))
        time.sleep(options.settle)
        return idle_cost(server.pid, options.idle)


def busy_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Speed beside busy processes."""
    table = Table(title=title, headers=["width", "quiet, tokens/s", "busy, tokens/s", "ratio", "asked", "reached"])
    for row in rows:
        reached = verdict(row["ratio"] >= MIN_BUSY_RATIO)
        numbers = (row["quiet_tokens_per_s"], row["busy_tokens_per_s"], row["ratio"])
        table.add(row["width"], *numbers, MIN_BUSY_RATIO, reached)
    return table


def idle_table(rows: Sequence[Mapping[str, Any]], seconds: float) -> Table:
    """Processor time of an idle server."""
    table = Table(title=f"A server left alone for {seconds:g} s", headers=["process", "processor time, ms", "share, %"])
    for row in rows:
        table.add(row["process"], float(row["cpu_ms"]), row["cpu_ms"] / seconds / 10)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.busy", description="Measure decoding beside busy processes, and an idle server."
    )
    parser.add_argument("--model", default="smollm2-135m", help="stored name, Hugging Face directory or GGUF file")
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 8], help="sequences decoded together")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--output", type=int, default=64, help="tokens to generate for each sequence")
    parser.add_argument("--rounds", type=int, default=7, help="medians are taken over as many rounds")
    parser.add_argument("--spinners", type=int, default=1, help="busy processes")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds that a server is left alone; 0 starts none")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds from its last answer until then")
    parser.add_argument("--serve-args", default="", help="further options for the started server, as one string")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = _parser().parse_args(argv)
    with contextlib.closing(EngineDriver(engine_config(options, locate(options.model)))) as driver:
        info = driver.info
        prompts = PromptSource(info.vocab_size, options.seed)
        driver.run(prompts.draw(2, 64), 8)
        contestant = BatchContestant(name="Wye", run=driver.run, prompts=prompts)
        rows = []
        for width in options.widths:
            shape = Shape(phase="decode", width=width, num_prompt=options.prompt, num_output=options.output)
            rows.append(measure_width(contestant, shape, options.rounds, options.spinners))
            print(f"{shape.label}: {rows[-1]['ratio']:.2f} of the quiet speed", flush=True)
    title = f"{options.model}, {info.dtype}, step {info.step}: decoding beside {options.spinners} busy process(es)"
    tables = [busy_table(rows, title)]
    idle = measure_idle(options) if options.idle else []
    if options.idle:
        tables.append(idle_table(idle, options.idle))
    results = {"step": info.step, "dtype": info.dtype, "spinners": options.spinners, "widths": rows}
    report(
        tables,
        {**results, "idle_s": options.idle, "idle": idle},
        json_path=options.json,
        markdown=options.markdown,
        device=info.device,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
