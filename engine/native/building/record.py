"""What became of a build, kept as JSON beside the module, so that a server can say it much later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RECORD_FILE = "_build.json"


@dataclass(frozen=True)
class BuildRecord:
    """One build.

    Attributes:
        built: Whether there is a module.
        reason: Why not, for people; empty if built.
        compiler: Name and version of the compiler; empty if not built.
        forms: Forms that were compiled.
        left_out: Forms that the compiler does not know.
        sources: Digest of the sources.
    """

    built: bool
    reason: str = ""
    compiler: str = ""
    forms: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    sources: str = ""


def write_record(record: BuildRecord, directory: Path) -> None:
    """Writes it into the directory of the module."""
    text = json.dumps(asdict(record), indent=2) + "\n"
    (directory / RECORD_FILE).write_text(text, encoding="utf-8")


def read_record(directory: Path) -> BuildRecord | None:
    """What the directory's build wrote down; None where there was none, or not of this version."""
    try:
        written: dict[str, Any] = json.loads((directory / RECORD_FILE).read_bytes())
        for name in ("forms", "left_out"):
            written[name] = tuple(written[name])
        return BuildRecord(**written)
    except (OSError, ValueError, TypeError, KeyError):
        return None
