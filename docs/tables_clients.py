"""Which features of the API each client library was seen to use."""

from __future__ import annotations

import json
from typing import Any

from docs.markdown import table
from docs.pages import ROOT
from tests.e2e.clients.features import FEATURES

RESULTS = ROOT / "docs" / "clients.json"


def clients_table() -> str:
    """Features by client, with notes on what a client does not offer."""
    return _table(json.loads(RESULTS.read_text(encoding="utf-8")))


def _table(entries: dict[str, dict[str, Any]]) -> str:
    notes: list[str] = []
    rows = [
        [words, *(_mark(entry["cells"][feature], notes) for entry in entries.values())]
        for feature, words in FEATURES.items()
    ]
    versions = [["version", *(f"{entry['version']}" for entry in entries.values())]]
    shown = table(["", *(entry["title"] for entry in entries.values())], [*versions, *rows])
    listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return f"{shown}\n\n{listed}"


def _mark(state: str, notes: list[str]) -> str:
    """One cell; what is lacking gets the number of its reason."""
    if state in ("works", "fails"):
        return {"works": "✓", "fails": "✗"}[state]
    if state not in notes:
        notes.append(state)
    return f"– {_small(notes.index(state) + 1)}"


def _small(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))
