"""Where the time of a decoding step goes, kernel by kernel: `python -m loadtests.step_profile`.

python -m loadtests.step_profile --shape qwen3-0.6b --device cuda --pages 4000 --widths 1 64
python -m loadtests.step_profile --shape qwen3-0.6b --device cuda --widths 64 --program watermark.py   a program draws
python -m loadtests.step_profile --shape qwen3-0.6b --device cuda --widths 16 --prompt 2048 --prefill    prompts instead

Kernels may overlap: one starts and loads its weights before the one in front of it has ended. So each is given two
times: how long it was there (*busy*), and by how much it put off the end of the step (*adds*): from the end of all
before it to its own. What all kernels add and the time in which none runs make up the step, to the last microsecond.
On a CPU the same is told of torch's operations.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from engine.build import build_loop
from engine.loop import EngineLoop
from engine.request import GenerateRequest, ProgramSpec
from engine.sampling.params import SamplingParams
from engine.settling import settle
from loadtests.driver import PromptSource
from loadtests.fresh import in_fresh_process
from loadtests.offline import add_engine_options, add_model_options, engine_config, model_of
from loadtests.results import report, save
from loadtests.tables import Table

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU = ("cpu_op",)
"""Categories of a trace's events that stand for work."""

_UNTRACED = 16
"""Steps that the tracer sees and does not report: with it, the first take longer."""


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel that ran, or one operation; times in microseconds."""

    name: str
    start_us: float
    end_us: float


@dataclass(slots=True)
class Share:
    """What all kernels of one name come to.

    Attributes:
        count: How many ran.
        busy_us: How long they were there.
        adds_us: By how much they put off the end of everything.
    """

    count: int = 0
    busy_us: float = 0.0
    adds_us: float = 0.0


@dataclass(slots=True)
class Account:
    """Where a time went.

    Attributes:
        shares: By name.
        idle_us: Time between the first and the last of them in which none ran.
    """

    shares: dict[str, Share] = field(default_factory=dict)
    idle_us: float = 0.0

    @property
    def total_us(self) -> float:
        """From the first kernel's start to the last one's end."""
        return self.idle_us + sum(share.adds_us for share in self.shares.values())


def account(spans: Iterable[Span]) -> Account:
    """Gives every microsecond to the kernel that put it off, or to nobody."""
    found = Account()
    reached = None
    for span in sorted(spans, key=lambda span: (span.start_us, span.end_us)):
        share = found.shares.setdefault(span.name, Share())
        share.count += 1
        share.busy_us += span.end_us - span.start_us
        if reached is None:
            reached = span.start_us
        found.idle_us += max(0.0, span.start_us - reached)
        share.adds_us += max(0.0, span.end_us - max(reached, span.start_us))
        reached = max(reached, span.end_us)
    return found


def spans_of(events: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Kernels of a Chrome trace; without any, the innermost operations of a CPU.

    Kernels of one name that run in grids of different sizes do different work, and are told apart by them.
    """
    kernels = [event for event in events if event.get("cat") in ON_GPU and event.get("ph") == "X"]
    if not kernels:
        return _innermost([event for event in events if event.get("cat") in ON_CPU and event.get("ph") == "X"])
    grids: dict[str, set[str]] = {}
    named = [(short_name(event["name"]), _grid(event), event) for event in kernels]
    for name, grid, _ in named:
        grids.setdefault(name, set()).add(grid)
    return [
        Span(f"{name} {grid}" if len(grids[name]) > 1 else name, event["ts"], event["ts"] + event["dur"])
        for name, grid, event in named
    ]


def short_name(name: str) -> str:
    """A kernel's name without what C++ puts around it."""
    bare = name.removeprefix("void ").split("<")[0].split("(")[0].strip()
    return (bare or name)[:60]


def _grid(event: Mapping[str, Any]) -> str:
    grid = event.get("args", {}).get("grid")
    return "x".join(map(str, grid)) if grid else ""


def _innermost(events: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Those without another inside, of each thread."""
    found = []
    for thread in {event["tid"] for event in events}:
        ordered = sorted(
            (event for event in events if event["tid"] == thread), key=lambda event: (event["ts"], -event["dur"])
        )
        for event, after in zip(ordered, [*ordered[1:], None], strict=True):
            end_us = event["ts"] + event["dur"]
            if after is None or after["ts"] >= end_us:
                found.append(Span(event["name"], event["ts"], end_us))
    return found


def measure(options: argparse.Namespace, width: int) -> dict[str, Any]:
    """Times steps of one width, then traces as many. To be called in a new process.

    Raises:
        RuntimeError: Nothing was traced.
    """
    loop = build_loop(engine_config(options, model_of(options)))
    settle()
    on_gpu = loop.info.device.startswith("cuda")
    try:
        if options.prefill:
            prompts = _Prompts(loop, options, width)
            steps = prompts.run
        else:
            _start(loop, options, width)
            steps = partial(_steps, loop)
        steps(options.warm_up)
        started_s = time.perf_counter()
        steps(options.steps)
        step_us = (time.perf_counter() - started_s) / options.steps * 1e6
        with tempfile.TemporaryDirectory() as directory:
            spans = spans_of(_traced(steps, options, Path(directory) / "trace.json", on_gpu=on_gpu))
    finally:
        loop.close()
    if not spans:
        raise RuntimeError("the profiler saw no kernel of any step")
    found = account(spans)
    rows = sorted(found.shares.items(), key=lambda item: -item[1].adds_us)
    return {
        "width": width,
        "device": loop.info.device,
        "step": loop.info.step,
        "steps": options.steps,
        "prefill": options.prefill,
        "program": options.program is not None,
        "step_us": step_us,
        "traced_step_us": found.total_us / options.steps,
        "idle_us": found.idle_us / options.steps,
        "kernels": [
            {
                "name": name,
                "count": share.count / options.steps,
                "busy_us": share.busy_us / options.steps,
                "adds_us": share.adds_us / options.steps,
            }
            for name, share in rows
        ],
    }


def _start(loop: EngineLoop, options: argparse.Namespace, width: int) -> None:
    """Brings sequences to a point from where on every step decodes them all, and is recorded if it ever will be."""
    num_output = 2 * options.steps + options.warm_up + _UNTRACED + 64
    prompts = PromptSource(loop.info.vocab_size, options.seed).draw(width, options.prompt)
    program = None if options.program is None else ProgramSpec(source=options.program.read_text(encoding="utf-8"))
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=num_output, temperature=options.temperature, seed=number, ignore_eos=True)
        request = GenerateRequest(request_id=f"profile-{number}", prompt_ids=prompt, sampling=sampling, program=program)
        loop.submit(request)
    _until_told_of(loop, {f"profile-{number}" for number in range(width)})


def _until_told_of(loop: EngineLoop, names: set[str]) -> None:
    """Steps until each of some requests has sent something."""
    while names:
        for event in loop.step():
            if event.error is not None:
                raise RuntimeError(f"a sequence failed: {event.error.message}")
            names.discard(event.request_id)


class _Prompts:
    """Prompts that are all computed at once, new ones each time, for the one token of each that follows.

    Args:
        loop: Computes them.
        options: Say how long they are.
        width: How many at once.
    """

    def __init__(self, loop: EngineLoop, options: argparse.Namespace, width: int) -> None:
        self._loop = loop
        self._width = width
        self._num_tokens = options.prompt
        self._source = PromptSource(loop.info.vocab_size, options.seed)
        self._count = 0

    def run(self, times: int) -> None:
        """Computes all of them so many times."""
        for _ in range(times):
            names = set()
            for prompt in self._source.draw(self._width, self._num_tokens):
                self._count += 1
                names.add(f"prompt-{self._count}")
                sampling = SamplingParams(max_tokens=1, ignore_eos=True)
                request = GenerateRequest(request_id=f"prompt-{self._count}", prompt_ids=prompt, sampling=sampling)
                self._loop.submit(request)
            _until_told_of(self._loop, names)


def _steps(loop: EngineLoop, number: int) -> None:
    for _ in range(number):
        loop.step()
    if loop.info.device.startswith("cuda"):
        torch.cuda.synchronize()


def _traced(
    steps: Callable[[int], None], options: argparse.Namespace, path: Path, *, on_gpu: bool
) -> list[Mapping[str, Any]]:
    """Events of a trace of so many steps."""
    with profile(
        activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU],
        experimental_config=None if on_gpu else _ExperimentalConfig(profile_all_threads=True),
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    ) as tracer:
        steps(1 if options.prefill else _UNTRACED)
        tracer.step()
        steps(options.steps)
        tracer.step()
    events: list[Mapping[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def table_of(row: Mapping[str, Any], num_kernels: int) -> Table:
    """One width: the kernels that add most, and the rest."""
    what = "Prompts at once" if row["prefill"] else "A step of width"
    table = Table(
        title=f"{what} {row['width']}: {row['step_us']:.0f} us, traced {row['traced_step_us']:.0f} us",
        headers=["what", "a step", "busy, us", "adds, us", "adds, %"],
    )
    shown, rest = row["kernels"][:num_kernels], row["kernels"][num_kernels:]
    lines = [(one["name"], one["count"], one["busy_us"], one["adds_us"]) for one in shown]
    if rest:
        sums = (sum(one[key] for one in rest) for key in ("count", "busy_us", "adds_us"))
        lines.append((f"{len(rest)} others", *sums))
    lines.append(("nothing runs", None, None, row["idle_us"]))
    for name, count, busy_us, adds_us in lines:
        table.add(name, count, busy_us, adds_us, 100 * adds_us / row["traced_step_us"])
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.step_profile", description="Say where the time of a decoding step goes."
    )
    add_model_options(parser)
    parser.add_argument("--widths", type=int, nargs="+", default=[1], help="sequences decoded together")
    parser.add_argument("--prompt", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--steps", type=int, default=64, help="steps that are timed, and traced")
    parser.add_argument("--warm-up", type=int, default=96, help="steps before those")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--program", type=Path, help="a file with a device program without parameters, which draws")
    parser.add_argument("--prefill", action="store_true", help="profile prompts, computed at once, instead of decoding")
    parser.add_argument("--kernels", type=int, default=16, help="lines of a table")
    parser.add_argument("--seed", type=int, default=0, help="draws the prompts")
    add_engine_options(parser)
    parser.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    tables: list[Table] = []
    for width in options.widths:
        rows.append(in_fresh_process(measure, options, width))
        tables.append(table_of(rows[-1], options.kernels))
        if options.json is not None:
            save(tables, {"model": str(model_of(options)), "rows": rows}, options.json, device=rows[0]["device"])
    report(
        tables,
        {"model": str(model_of(options)), "rows": rows},
        json_path=options.json,
        markdown=options.markdown,
        device=rows[0]["device"],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
