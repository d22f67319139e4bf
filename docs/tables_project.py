"""Tables of what `make` can do and of the models known by a short name."""

from __future__ import annotations

import re
from pathlib import Path

from docs.markdown import code, table
from engine.sources.catalog import CATALOG

MAKEFILE = Path(__file__).resolve().parent.parent / "Makefile"
_TARGET = re.compile(r"^(?P<name>[a-z]+):.*## (?P<about>.*)$", re.MULTILINE)


def make_targets() -> dict[str, str]:
    """What each documented target of the Makefile is for."""
    return {match["name"]: match["about"] for match in _TARGET.finditer(MAKEFILE.read_text(encoding="utf-8"))}


def make_table() -> str:
    """The documented targets."""
    return table(["command", "what it does"], [(code(f"make {name}"), about) for name, about in make_targets().items()])


def catalog_table() -> str:
    """The models that `wye models pull NAME` knows."""
    rows = [
        (code(name), model.about, f"{model.wheel_bytes / 1e6:.0f} MB", f"{code(model.package)} {model.version}")
        for name, model in CATALOG.items()
    ]
    return table(["name", "model", "download", "package"], rows)
