"""What commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


def output() -> Console:
    """Console for results; made anew, since tests and pipes exchange the stream."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False)


def messages() -> Console:
    """Console for everything else."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)


def print_error(message: str) -> None:
    """One line, or what the message has."""
    messages().print(f"[bold red]error:[/] {_literal(message)}", soft_wrap=True)


def print_warning(message: str) -> None:
    """One line about something that was accepted, and may not be what was meant."""
    messages().print(f"[bold yellow]warning:[/] {_literal(message)}", soft_wrap=True)


def print_json(value: Any) -> None:
    """Machine-readable result."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def format_bytes(size_bytes: int) -> str:
    """A size for people, in binary units."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_bytes(text: str) -> int:
    """Bytes written as `1073741824`, `512MiB`, `2G` or `1.5GB`.

    Raises:
        ValueError: It is not a positive size.
    """
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {f"{letter}IB": units[letter] for letter in "KMGT"} | {"B": 1}
    number = text.strip().rstrip("BbIiKkMmGgTt").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"{text!r} is no size; write bytes, or a number with KiB, MiB, GiB, KB, MB or GB") from None
    if size <= 0:
        raise ValueError(f"{text!r} is no positive size")
    return size


class TransferProgress:
    """Implements `engine.sources.progress.Progress`: a bar on a terminal, a line a stage elsewhere."""

    def __init__(self) -> None:
        self._console = messages()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Shows a bar, or prints the label."""
        if not self._console.is_terminal:
            size = f" ({format_bytes(total_bytes)})" if total_bytes else ""
            self._console.print(_literal(label) + size, soft_wrap=True)
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.start()
        self._task = self._bar.add_task(label, total=total_bytes)

    def update(self, done_bytes: int) -> None:
        """Moves the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done_bytes)

    def end(self) -> None:
        """Leaves the bar where it stands."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def note(self, message: str) -> None:
        """Prints a line."""
        self._console.print(_literal(message), soft_wrap=True)


def _literal(text: str) -> str:
    """Text in which square brackets mean nothing."""
    from rich.markup import escape

    return escape(text)
