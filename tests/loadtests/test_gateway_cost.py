"""What a streamed token costs a gateway: what is counted, and that a worker streams what the scripted engine says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from loadtests import gateway_cost
from loadtests.gateway_cost import Cost
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize(("streams", "reached"), [(64, ["yes", "no"]), (8, [None, None])])
def test_medians_are_judged_at_the_number_of_streams_that_is_asked_about(
    streams: int, reached: list[str | None]
) -> None:
    cheap = [Cost(token_us=us, stream_ms=1.0) for us in (20.0, 24.0, 90.0)]
    dear = [Cost(token_us=us, stream_ms=1.0) for us in (10.0, 26.0, 30.0)]
    rows = [gateway_cost.cost_row("chat", cheap), gateway_cost.cost_row("text", dear)]
    assert [row["token_us"] for row in rows] == [24.0, 26.0]
    assert [cells[-1] for cells in gateway_cost.cost_table(rows, streams).rows] == reached


def test_the_command_measures_every_kind_of_stream(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    path = tmp_path / "cost.json"
    sizes = ["--streams", "3", "--tokens", "40", "--step-ms", "1", "--rounds", "1"]
    assert gateway_cost.main(["--model", str(model), "--json", str(path), *sizes]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [row["kind"] for row in document["kinds"]] == list(gateway_cost.KINDS)
    # What a stream costs beside its tokens is a difference of measurements, which can be below 0 in so short a run.
    assert all(len(row["rounds_us"]) == 1 and math.isfinite(row["stream_ms"]) for row in document["kinds"])
