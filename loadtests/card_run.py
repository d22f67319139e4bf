"""Runs what a part of `loadtests.card` is made of: a command in a process of its own, within a time of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from loadtests.card_numbers import Tell, nothing
from loadtests.server import CHECKOUT

GRACE_S = 15.0
"""What a command that has been asked to end gets to do so, and to end its own processes."""

MARK = "WYE_CARD_CASE"
"""Variable that tells which case a process belongs to: servers in sessions of their own outlive who started them."""

_LOG_LINES = 12

How = Literal["ok", "failed", "out of time", "left out"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One command.

    Attributes:
        name: Of its log and, unless it has a file, of nothing else.
        module: Run with `python -m`.
        arguments: Of it; `--json` is added where it writes a file.
        result: Name of the file that it writes, or None.
        limit_s: Seconds it may take.
        environment: Variables set for it.
        tell: What its file says, in a line.
        unless: It has been done before if this is there.
    """

    name: str
    module: str
    arguments: Sequence[str]
    result: str | None = None
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    tell: Tell = nothing
    unless: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a command.

    Attributes:
        part: Whose it was.
        case: Its name.
        how: How it ended.
        seconds: That it took.
        said: A line: what its file says, or why there is none.
        result: Name of its file, if there is one: of a command that failed, what it had measured by then.
        log: The end of what it printed, of one that failed.
    """

    part: str
    case: str
    how: How
    seconds: float = 0.0
    said: str = ""
    result: str | None = None
    log: Sequence[str] = ()


def run_case(part: str, case: Case, directory: Path, limit_s: float) -> Outcome:
    """Runs a command until it ends or its time is over; whatever it started is gone afterwards.

    Args:
        part: Name of the part.
        case: The command.
        directory: For its file; its log goes to `logs`.
        limit_s: Seconds it may take, if that is less than its own limit.
    """
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log_path = logs / f"{part}-{case.name}.log"
    command = [sys.executable, "-m", case.module, *case.arguments]
    if case.result is not None:
        (directory / case.result).unlink(missing_ok=True)
        command[3:3] = ["--json", str(directory / case.result)]
    started_s = time.monotonic()
    mark = uuid.uuid4().hex
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **case.environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=min(case.limit_s, limit_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process, mark)
    seconds = time.monotonic() - started_s
    how: How = "out of time" if code is None else "failed" if code else "ok"
    written = case.result is not None and (directory / case.result).exists()
    return Outcome(
        part=part,
        case=case.name,
        how=how,
        seconds=seconds,
        said=_said(case, directory, how, code),
        result=case.result if written else None,
        log=[] if how == "ok" else _tail(log_path),
    )


def end(process: subprocess.Popen[bytes], mark: str, grace_s: float = GRACE_S) -> None:
    """Ends a process and all that it started: asked first, since some end others in good order, then killed.

    Args:
        process: It; it may have ended.
        mark: What `MARK` says in its environment.
        grace_s: Seconds it gets to end by itself.
    """
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)
    if process.poll() is None:
        process.kill()
    process.wait()
    for one in _marked(mark):
        with contextlib.suppress(psutil.Error):
            one.kill()


def as_json(outcome: Outcome) -> dict[str, object]:
    """For the report."""
    return asdict(outcome)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or somebody else's
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _said(case: Case, directory: Path, how: How, code: int | None) -> str:
    parts = [f"exit code {code}"] if how == "failed" else []
    if case.result is not None:
        try:
            parts.append(case.tell(json.loads((directory / case.result).read_text(encoding="utf-8"))))
        except OSError:
            parts.append("wrote no file")
        except (ValueError, LookupError, TypeError) as error:
            parts.append(f"its file cannot be read ({type(error).__name__}: {error})")
    return ", ".join(part for part in parts if part)


def _tail(log_path: Path) -> list[str]:
    return log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
