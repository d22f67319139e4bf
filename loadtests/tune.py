"""Looks for faster cuts of the kernels of a decoding step: `python -m loadtests.tune --shape llama-3.1-8b --width 1`.

Each cut is timed inside the whole step, recorded as a graph: kernels begin before those in front of them have ended, so
that one alone tells little. From the cut that is in use it goes to the fastest neighbour, part by part, until none is
faster or the time is over. What gives other logits is not taken. The winners belong into `engine.cuda.kernels`' tables.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from engine.cuda.buffers import DecodeBuffers
from engine.cuda.decoding import Decoding
from engine.cuda.lanes import DecodeLanes
from engine.cuda.model import CudaModel
from engine.cuda.plan import DecodePlan, make_plan
from engine.cuda.recordings import capture
from engine.cuda.status import cuda_status
from engine.kv.storage import KVStorage
from engine.models.checkpoint import open_checkpoint
from engine.models.weights import load_weights
from loadtests.cuts import PARTS, Cut, cut_of, neighbours, with_cut
from loadtests.results import report
from loadtests.tables import Table

PAGE_SIZE = 16

LEAST_GAIN = 0.002
"""Share of a step's time that a cut must save: less is noise."""

MOST_ERROR = 0.02
"""Relative distance of logits: what another order of adding up in bfloat16 may come to."""


class OtherLogits(Exception):
    """A cut computes something else."""


class Tuner:
    """Times whole steps of one width.

    Args:
        model: What is computed.
        width: Lanes.
        context: Tokens of each lane.
        replays: Steps of one sample.
        samples: Of which the median is taken.
        pdl: Kernels may begin before those in front of them have ended.

    Attributes:
        num_failed: Cuts that did not compile, or gave other logits.
    """

    def __init__(self, model: CudaModel, *, width: int, context: int, replays: int, samples: int, pdl: bool) -> None:
        config, device = model.config, model.device
        columns = -(-context // PAGE_SIZE)
        self.num_failed = 0
        self._model, self._width, self._pdl = model, width, pdl
        self._replays, self._samples = replays, samples
        self._logits: torch.Tensor | None = None
        self._storage = KVStorage(
            num_layers=config.num_layers,
            num_pages=width * columns,
            page_size=PAGE_SIZE,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
            device=device,
        )
        torch.manual_seed(0)
        for layer in self._storage.layers:
            layer.normal_()
        lanes = self._lanes = DecodeLanes(width, columns, device)
        lanes.rows.copy_(torch.arange(width))
        lanes.given.copy_(torch.arange(1, width + 1))
        lanes.positions.fill_(context - 1)
        lanes.context_lens.fill_(context)
        lanes.tables.copy_(torch.randperm(width * columns).view(width, columns))
        self._last_tokens = torch.zeros(width, dtype=torch.int64, device=device)

    def step_ms(self, plan: DecodePlan) -> float:
        """Milliseconds of a step.

        Raises:
            OtherLogits: They are not those of the first plan that was timed.
        """
        buffers = DecodeBuffers(self._model, [plan])
        decoding = Decoding(plan, self._lanes, self._storage, buffers, self._last_tokens, pdl=self._pdl)
        found: list[torch.Tensor] = []

        def run() -> None:
            found[:] = [decoding.launch()]

        replay = capture(run, self._model.device, [])
        replay()
        self._compare(found[0][: self._width])
        return statistics.median(self._sample(replay) for _ in range(self._samples))

    def climb(self, plan: DecodePlan, part: str, now_ms: float, until_s: float) -> tuple[DecodePlan, float]:
        """Goes to the fastest neighbour while one is faster and there is time; returns the last plan, and its time."""
        tried: set[Cut] = set()
        while True:
            cut = cut_of(plan, part)
            if cut is None:
                return plan, now_ms
            tried.add(cut)
            best, best_ms = plan, now_ms * (1 - LEAST_GAIN)
            for other in neighbours(cut, part):
                if other in tried:
                    continue
                if time.monotonic() > until_s:
                    break
                tried.add(other)
                changed = with_cut(plan, part, other)
                try:
                    other_ms = self.step_ms(changed)
                except Exception:  # whatever a compiler or a launch has against it
                    self.num_failed += 1
                    continue
                if other_ms < best_ms:
                    best, best_ms = changed, other_ms
            if best is plan:
                return plan, now_ms
            plan, now_ms = best, best_ms

    def _compare(self, logits: torch.Tensor) -> None:
        if self._logits is None:
            self._logits = logits.clone()
            return
        error = torch.linalg.vector_norm(logits - self._logits) / torch.linalg.vector_norm(self._logits)
        if not float(error) <= MOST_ERROR:
            raise OtherLogits(f"logits differ by {float(error):.3g}")

    def _sample(self, replay: Callable[[], None]) -> float:
        """Milliseconds of a step, of some in a row."""
        if self._model.device.type != "cuda":
            started_s = time.perf_counter()
            for _ in range(self._replays):
                replay()
            return (time.perf_counter() - started_s) / self._replays * 1000
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        start, end = events
        start.record()
        for _ in range(self._replays):
            replay()
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
        return elapsed_ms / self._replays


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    command = argparse.ArgumentParser(prog="python -m loadtests.tune", description="Look for faster cuts of kernels.")
    command.add_argument("--shape", default="qwen3-0.6b", help="random weights of a known shape")
    command.add_argument("--width", type=int, default=1, help="lanes of the step: 1 to 64")
    command.add_argument("--context", type=int, default=256, help="tokens of each lane")
    command.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what may be cut anew")
    command.add_argument("--budget-s", type=float, default=120.0, help="seconds in all")
    command.add_argument("--replays", type=int, default=20, help="steps of one sample")
    command.add_argument("--samples", type=int, default=5, help="medians are taken over as many samples")
    command.add_argument("--device", default="cuda", help="cuda or cuda:N")
    command.add_argument("--json", type=Path, help="write results, machine and versions to this file")
    command.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    options = parser().parse_args(argv)
    device = torch.device(options.device)
    status = cuda_status(device) if device.type == "cuda" else None
    if status is not None and not status.available:
        print(f"there is no CUDA step here: {status.reason}", file=sys.stderr)
        return 2
    until_s = time.monotonic() + options.budget_s
    checkpoint = open_checkpoint(f"shape:{options.shape}")
    model = CudaModel.of(checkpoint.config, load_weights(checkpoint, torch.bfloat16, device))
    tuner = Tuner(
        model,
        width=options.width,
        context=options.context,
        replays=options.replays,
        samples=options.samples,
        pdl=status is not None and status.has_pdl,
    )
    plan = make_plan(model, options.width, options.context)
    first_ms = now_ms = tuner.step_ms(plan)
    table = Table(title=f"{options.shape}, width {options.width}", headers=["part", "us before", "us after", "cut"])
    rows: list[dict[str, Any]] = []
    for at, part in enumerate(options.parts):
        if cut_of(plan, part) is None:
            continue
        # What is left is shared out, so that the last parts get their turn.
        left_s = until_s - time.monotonic()
        before_ms = now_ms
        plan, now_ms = tuner.climb(plan, part, now_ms, time.monotonic() + left_s / (len(options.parts) - at))
        cut = cut_of(plan, part)
        assert cut is not None
        table.add(part, before_ms * 1000, now_ms * 1000, str(cut))
        rows.append({"part": part, "before_ms": before_ms, "after_ms": now_ms, "cut": asdict(cut)})
    # The clock of a card drifts as it warms up: both ends are timed side by side.
    again_ms = tuner.step_ms(make_plan(model, options.width, options.context))
    after_ms = tuner.step_ms(plan)
    table.add("whole step", again_ms * 1000, after_ms * 1000, f"{tuner.num_failed} cuts failed")
    results = {
        "shape": options.shape,
        "width": options.width,
        "context": options.context,
        "first_ms": first_ms,
        "before_ms": again_ms,
        "after_ms": after_ms,
        "num_failed": tuner.num_failed,
        "parts": rows,
    }
    report([table], results, json_path=options.json, markdown=options.markdown, device=options.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
