"""Ctrl-C under `make`: the program ends in good order, and `make` ends as the program did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.terminal import CTRL_C, TerminalSession

FOREGROUND = Path(__file__).resolve().parents[2] / "scripts" / "foreground.py"

PROGRAM = """
import signal, sys, time
def stop(number, frame):
    print("drained", flush=True)
    sys.exit({code})
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
print("running", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def makefile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the `make test` that runs us
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "Makefile"


def write_makefile(makefile: Path, *, code: int = 0) -> None:
    program = makefile.parent / "program.py"
    program.write_text(PROGRAM.format(code=code), encoding="utf-8")
    makefile.write_text(f"run:\n\t@{sys.executable} {FOREGROUND} {sys.executable} {program}\n", encoding="utf-8")


def run_in_terminal(makefile: Path, *, number: int | None) -> tuple[int, str]:
    """Runs `make` in a terminal of its own; sends it a signal, or None for the Ctrl-C key. Returns code and output."""
    session = TerminalSession(["make", "--no-print-directory", "-f", str(makefile), "run"])
    session.wait_for("running")
    if number is None:
        session.press(CTRL_C)
    else:
        os.kill(session.pid, number)
    session.wait_for("drained")
    return session.wait(), session.output


def test_ctrl_c_lets_the_program_drain_and_make_exits_0(makefile: Path) -> None:
    write_makefile(makefile)
    code, seen = run_in_terminal(makefile, number=None)
    assert code == 0
    assert "drained" in seen
    assert "***" not in seen


def test_make_fails_if_the_program_fails(makefile: Path) -> None:
    write_makefile(makefile, code=3)
    code, _ = run_in_terminal(makefile, number=None)
    assert code == 2


def test_a_killed_make_takes_the_program_with_it(makefile: Path) -> None:
    write_makefile(makefile)
    _, seen = run_in_terminal(makefile, number=signal.SIGTERM)
    assert "drained" in seen


def test_without_a_terminal_the_program_takes_the_place_of_the_script(makefile: Path) -> None:
    write_makefile(makefile)
    process = subprocess.Popen(
        ["make", "--no-print-directory", "-f", str(makefile), "run"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert rest == "drained\n"


def test_the_exit_code_of_a_program_passes_through() -> None:
    done = subprocess.run(
        [sys.executable, str(FOREGROUND), "sh", "-c", "exit 7"], stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 7
