"""Decoding beside a busy process, and the processor time of processes that are left alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from loadtests import busy
from loadtests.contest import BatchContestant, Shape
from loadtests.driver import BatchTiming, PromptSource, SequenceTiming
from tests.processes import words_of
from tests.tiny_models import write_tiny_model

SHAPE = Shape(phase="decode", width=2, num_prompt=8, num_output=5)


def test_busy_processes_use_a_core_and_are_gone_afterwards() -> None:
    with busy.busy_processes(2) as pids:
        before = [busy.cpu_ms(pid)[pid] for pid in pids]
        deadline = time.monotonic() + 60
        while any(busy.cpu_ms(pid)[pid] <= used for pid, used in zip(pids, before, strict=True)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert not any(map(psutil.pid_exists, pids))


def test_quiet_and_busy_take_turns_in_going_first() -> None:
    children: list[int] = []

    def run(prompts: Sequence[Sequence[int]], num_output: int) -> BatchTiming:
        num_busy = sum("while True" in " ".join(words_of(child)) for child in psutil.Process().children())
        children.append(num_busy)
        step_s = 0.5 if num_busy else 0.25
        times = [step_s * (1 + position) for position in range(num_output)]
        sequences = [SequenceTiming(times=list(times)) for _ in prompts]
        return BatchTiming(num_prompt_tokens=16, sequences=sequences, wall_s=times[-1])

    contestant = BatchContestant(name="Wye", run=run, prompts=PromptSource(512))
    row = busy.measure_width(contestant, SHAPE, rounds=2, spinners=1)
    assert children == [0, 1, 1, 0]
    assert row["quiet_tokens_per_s"] == pytest.approx(8.0)
    assert row["busy_tokens_per_s"] == pytest.approx(4.0)
    assert row["ratio"] == pytest.approx(0.5)
    assert busy.busy_table([row], "title").rows == [(2, *map(pytest.approx, (8.0, 4.0, 0.5)), 0.6, "no")]


def test_time_of_processes_left_alone_is_counted_by_process() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not psutil.Process(process.pid).children():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        rows = busy.idle_cost(process.pid, 0.05)
        process.communicate(b"\n")
    assert len(rows) == 2
    assert all(row["cpu_ms"] >= 0 and row["process"].startswith("python") for row in rows)


def test_the_command_measures_each_width(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    path = tmp_path / "busy.json"
    sizes = ["--widths", "1", "3", "--prompt", "16", "--output", "8", "--rounds", "1", "--idle", "0"]
    assert busy.main(["--model", str(model), "--pages", "64", "--threads", "1", *sizes, "--json", str(path)]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [row["width"] for row in document["widths"]] == [1, 3]
    assert all(row["ratio"] > 0 for row in document["widths"])
    assert document["idle"] == []
