"""Decoding within a form beside free text: what is counted, and that the command measures it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.request import ConstraintSpec
from engine.text.tokenizer import Tokenizer
from loadtests import constrained
from loadtests.driver import BatchTiming, SequenceTiming
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


class Driver:
    """Free text takes a second a token, any form two; a quarter of what a form says is forced."""

    def __init__(self) -> None:
        self.order: list[bool] = []

    def run(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, constraint: ConstraintSpec | None, **_: Any
    ) -> BatchTiming:
        self.order.append(constraint is None)
        step_s = 1.0 if constraint is None else 2.0
        times = [step_s * (1 + position) for position in range(num_output)]
        num_forced = 0 if constraint is None else len(prompts) * num_output // 4
        sequences = [SequenceTiming(times=list(times)) for _ in prompts]
        return BatchTiming(num_prompt_tokens=1, sequences=sequences, wall_s=1.0, num_forced_tokens=num_forced)


def test_forms_and_free_text_take_turns_and_forced_tokens_are_told_apart(model: Path) -> None:
    driver: Any = Driver()
    prompts = constrained.AskingPrompts(Tokenizer.load(model), 512)
    options = argparse.Namespace(rounds=2, prompt=60, output=40, temperature=0.0)
    rows = constrained.measure_width(driver, prompts, 8, options)
    num_forms = len(constrained.forms())
    assert driver.order == [True, *[False] * num_forms, *[False] * num_forms, True]
    for row in rows:
        assert row["free_tokens_per_s"] == pytest.approx(8.0)
        assert row["tokens_per_s"] == pytest.approx(4.0)
        assert (row["ratio"], row["forced_share"], row["drawn_ratio"]) == pytest.approx((0.5, 0.25, 0.375))
    table = constrained.form_table(rows, "title")
    assert {cells[-1] for cells in table.rows} == {"no"}


def test_first_tokens_can_be_left_out_of_a_rate() -> None:
    sequence = SequenceTiming(times=[0.0, 10.0, 11.0, 12.0])
    batch = BatchTiming(num_prompt_tokens=1, sequences=[sequence], wall_s=12.0)
    assert batch.after(1).decode_tokens_per_s == pytest.approx(1.0)
    with pytest.raises(ValueError, match="first 4"):
        batch.after(4)


def test_no_two_wide_schemas_are_the_same() -> None:
    specs = [constrained.wide_schema(200, number) for number in range(3)]
    assert len(set(specs)) == 3
    assert len(json.loads(specs[0].source)["properties"]) == 200


def test_the_command_measures_each_width_and_form(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "constrained.json"
    sizes = ["--widths", "1", "3", "--prompt", "16", "--output", "24", "--rounds", "1", "--properties", "20"]
    options = ["--model", str(model), "--pages", "64", "--threads", "1", "--json", str(path)]
    assert constrained.main([*options, *sizes]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [row["width"] for row in document["forms"]] == [1] * 4 + [3] * 4
    assert all(row["ratio"] > 0 for row in document["forms"])
    compact = [row for row in document["forms"] if row["form"] == "records without white space"]
    assert all(row["drawn_ratio"] < row["ratio"] for row in compact)
    assert 0 < document["compile"]["again_ms"] < document["compile"]["first_ms"]
