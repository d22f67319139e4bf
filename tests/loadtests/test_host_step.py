"""The measure of the host's own work: it drives the real engine and accounts for its time by part."""

from __future__ import annotations

import json
import time
from pathlib import Path

from loadtests import host_step
from loadtests.stopwatch import Stopwatch

NUM_OUTPUT = 30
NUM_LEFT_OUT = 10
"""Steps at both ends of a run, which are not measured."""


def test_every_part_of_a_step_is_measured_alone_and_behind_the_server(tmp_path: Path) -> None:
    path = tmp_path / "host_step.json"
    sizes = ["--widths", "2", "--prompt", "20", "--output", str(NUM_OUTPUT), "--rounds", "1"]
    assert host_step.main([*sizes, "--json", str(path)]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    alone, served = report["rows"]
    assert (alone["served"], served["served"]) == (False, True)
    # The sequences begin together and have all steps in common: a step is counted up to the begin of the next.
    assert [row["steps"] for row in report["rows"]] == [NUM_OUTPUT - NUM_LEFT_OUT - 1] * 2
    assert all(row["width"] == 2 and row["cpu_us"] > 0 for row in report["rows"])
    assert all(served["parts"][name] > 0 for name, _, _ in host_step.PARTS)
    assert {name for name, us in alone["parts"].items() if us == 0} == {"commands", "route", "send"}
    assert served["client_us"] > 0


class Work:
    """Something to measure."""

    def outer(self) -> str:
        self.inner()
        return "done"

    def inner(self) -> None:
        _burn(0.02)


def test_a_stopwatch_leaves_out_wrapped_callees_and_puts_functions_back() -> None:
    original = Work.outer
    with Stopwatch() as watch:
        watch.wrap(Work, "outer")
        watch.wrap(Work, "inner")
        assert Work().outer() == "done"
    assert watch.totals_ns["inner"] > 4 * watch.totals_ns["outer"] > 0
    assert Work.outer is original


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
