"""Client libraries do with this server what docs/clients.md says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from docs.tables_clients import RESULTS
from tests.e2e.clients.clients import CLIENTS
from tests.e2e.clients.features import FEATURES, NEEDS_MODEL
from tests.e2e.clients.matrix import table_entry
from tests.e2e.clients.running import Outcome

PUBLISHED: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
WORKING = [
    pytest.param(name, feature, id=f"{name}-{feature}")
    for name, entry in PUBLISHED.items()
    for feature, state in entry["cells"].items()
    if state == "works"
]

pytestmark = pytest.mark.timeout(1500)  # the first question waits until all clients are installed


def test_every_client_has_a_check_or_a_reason_for_every_feature() -> None:
    assert list(PUBLISHED) == list(CLIENTS)
    for entry in PUBLISHED.values():
        assert list(entry["cells"]) == list(FEATURES)
        assert not [state for state in entry["cells"].values() if state in ("fails", "missing")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature"), WORKING)
def test_the_client_can_use(name: str, feature: str, outcome_of: Callable[[str], Outcome]) -> None:
    cell = outcome_of(name).cells.get(feature)
    if cell is None and feature in NEEDS_MODEL:
        pytest.skip("smollm2-135m is not in the model store: run `make model`")
    assert cell is not None
    assert cell["state"] == "works", cell.get("detail")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_the_published_table_shows_what_ran(name: str, outcome_of: Callable[[str], Outcome]) -> None:
    outcome = outcome_of(name)
    found, published = table_entry(name, outcome), PUBLISHED[name]
    if not outcome.cells.keys() & NEEDS_MODEL:
        for entry in (found, published):
            entry["cells"] = {key: state for key, state in entry["cells"].items() if key not in NEEDS_MODEL}
    assert found == published, "run `python -m tests.e2e.clients.matrix`"
