"""Where the pages of the documentation are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pages() -> list[Path]:
    """Every Markdown page of the project, README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
