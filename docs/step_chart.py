"""The chart of decoding steps on the H200, `docs/steps.svg`, drawn from loadtests/results/offline-h200*.json."""

from __future__ import annotations

from collections.abc import Sequence

from docs.gpu_results import Measured, measured
from docs.lines import Line, picture
from docs.pages import ROOT

PATH = ROOT / "docs" / "steps.svg"

_OURS, _PEER, _FLOOR = "#2f6f4f", "#8795a1", "#b3472f"


def chart() -> str | None:
    """The picture; None as long as nothing was measured."""
    found = [one for one in measured() if one.peer is not None]
    return draw(found) if found else None


def draw(offline: Sequence[Measured]) -> str:
    """A panel for each model: a step over its width beside vLLM's, and what reading the weights alone takes."""
    return picture([_panel(one) for one in offline], x_label="width")


def _panel(one: Measured) -> tuple[str, list[Line]]:
    rows = one.widths
    lines = [Line("Wye", [(row["width"], row["step_ms"]) for row in rows], _OURS)]
    if one.peer is not None:
        shared = {row["width"] for row in rows}
        points = [(width, ms) for width, ms in one.peer.step_ms.items() if width in shared]
        lines += [Line("vLLM 0.26.0", points, _PEER)] if points else []
    floor = [(row["width"], row["floor_ms"]) for row in rows if row.get("floor_ms")]
    lines += [Line("floor", floor, _FLOOR, is_dashed=True)] if floor else []
    return f"{one.label}: ms a step", lines
