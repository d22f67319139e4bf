"""Tables of results: aligned text for a terminal, Markdown for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | None


def format_cell(value: Cell) -> str:
    """Text of one value: three significant digits or more, `-` for what was not measured."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return "failed"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


@dataclass(kw_only=True)
class Table:
    """Rows under headers; the first column is a label, numbers are aligned to the right.

    Attributes:
        title: Printed above.
        headers: One a column, with the unit.
        rows: As many cells each.
    """

    title: str
    headers: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """Appends one row.

        Raises:
            ValueError: The row is not as wide as the headers.
        """
        if len(cells) != len(self.headers):
            raise ValueError(f"{len(cells)} cells under {len(self.headers)} headers in {self.title!r}")
        self.rows.append(cells)

    def to_json(self) -> dict[str, Any]:
        """Title, headers and the text of every cell."""
        rows = [[format_cell(cell) for cell in row] for row in self.rows]
        return {"title": self.title, "headers": list(self.headers), "rows": rows}

    def text(self) -> str:
        """The table for a terminal."""
        grid = [list(self.headers), *([format_cell(cell) for cell in row] for row in self.rows)]
        widths = [max(len(line[column]) for line in grid) for column in range(len(self.headers))]
        lines = ["  ".join(_aligned(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True)))
                 for line in grid]  # fmt: skip
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([self.title, "", lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])

    def markdown(self) -> str:
        """The table for a page of the docs, without its title."""
        lines = [self.headers, ["---", *(["---:"] * (len(self.headers) - 1))]]
        lines += [[format_cell(cell) for cell in row] for row in self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)
