"""Markdown from values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars and line breaks in cells are escaped."""
    lines = [headers, ["---"] * len(headers), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(text: str) -> str:
    """Text as inline code; empty stays empty."""
    return f"`{text}`" if text else ""


def first_sentence(docstring: str | None) -> str:
    """The first sentence of a docstring's first paragraph, on one line."""
    paragraph = " ".join((docstring or "").strip().split("\n\n")[0].split())
    return paragraph if paragraph.endswith(".") else f"{paragraph}." if paragraph else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
