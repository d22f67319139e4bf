"""Answers with a drafter beside those without: what is counted, and that the command measures it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.request import DrafterSpec
from engine.text.model import TextModel
from loadtests import speculation
from loadtests.driver import BatchTiming, EngineDriver, SequenceTiming
from loadtests.offline import engine_config
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


class Driver:
    """An answer takes four seconds, with lookup two, with a prediction one; a prediction changes the answer."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        num_output: int,
        *,
        drafters: Sequence[DrafterSpec | None],
        at_once: int | None,
        **_: Any,
    ) -> BatchTiming:
        drafter = drafters[0]
        self.seen.append((len(prompts), at_once))
        wall_s = 4.0 if drafter is None else 1.0 if drafter.reference_ids else 2.0
        token_ids = [1] * num_output if wall_s > 1.0 else [2] * num_output
        return BatchTiming(
            num_prompt_tokens=1,
            sequences=[SequenceTiming(times=[wall_s] * num_output, token_ids=token_ids) for _ in prompts],
            wall_s=wall_s,
            num_drafted_tokens=0 if drafter is None else len(prompts) * num_output,
            num_accepted_tokens=0 if drafter is None else len(prompts) * num_output // 2,
        )


def test_ways_take_turns_and_an_answer_that_changed_is_told(model: Path) -> None:
    driver: Any = Driver()
    options = argparse.Namespace(rounds=2, output=10, temperature=0.0, guess=8)
    rows = speculation.measure(driver, TextModel.load(model), 2, options)
    assert set(driver.seen) == {(2 * speculation.PER_PLACE, 2)}
    found = {(row["workload"], row["way"]): row for row in rows}
    assert ("answering", "prediction") not in found
    lookup, prediction = found["editing", "lookup"], found["editing", "prediction"]
    assert (lookup["ratio"], lookup["drafted_share"], lookup["accepted_share"]) == pytest.approx((2.0, 1.0, 0.5))
    assert lookup["plain_tokens_per_s"] == pytest.approx(2 * speculation.PER_PLACE * 10 / 4)
    assert prediction["ratio"] == pytest.approx(4.0)
    assert lookup["same_answers"]
    assert not prediction["same_answers"]
    assert [cells[-1] for cells in speculation.draft_table([lookup, prediction], "title").rows] == ["yes", "no"]


def test_prompts_wait_until_one_has_ended(model: Path) -> None:
    options = speculation._parser().parse_args(["--model", str(model), "--threads", "1"])
    driver = EngineDriver(engine_config(options, model))
    try:
        together = driver.run([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 6)
        one_by_one = driver.run([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 6, at_once=1)
    finally:
        driver.close()
    assert [one.token_ids for one in together.sequences] == [one.token_ids for one in one_by_one.sequences]
    ends = [one.times[-1] for one in one_by_one.sequences]
    assert all(begun.times[0] > ended for ended, begun in zip(ends, one_by_one.sequences[1:], strict=False))


def test_the_command_writes_its_table(model: Path, tmp_path: Path) -> None:
    written = tmp_path / "result.json"
    arguments = ["--model", str(model), "--widths", "1", "--output", "16", "--rounds", "1", "--threads", "1"]
    assert speculation.main([*arguments, "--json", str(written)]) == 0
    document = json.loads(written.read_text())
    rows = document["results"]["drafters"] if "results" in document else document["drafters"]
    assert {row["way"] for row in rows} == {"lookup", "prediction"}
    assert all(row["same_answers"] for row in rows)
