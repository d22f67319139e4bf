"""The real model with weights, K or V in one byte a number keeps the quality that docs/performance.md promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import Checkpoint, open_checkpoint
from loadtests.quality import Examination, read_texts, total
from loadtests.quality_forms import FORMS, REFERENCE
from loadtests.results import RESULTS

HELD = [name for name, form in FORMS.items() if form.floor is not None]
TEXTS, TOKENS = ("letters", "scheduler"), 64


@pytest.fixture(scope="module")
def checkpoint(real_model_path: Path) -> Checkpoint:
    return open_checkpoint(real_model_path)


@pytest.fixture(scope="module")
def examination(real_model_path: Path, checkpoint: Checkpoint) -> Examination:
    """A short sample, read by the reference."""
    texts = {name: ids[:TOKENS] for name, ids in read_texts(real_model_path).items() if name in TEXTS}
    found = Examination(texts, window=TOKENS, chunk=TOKENS)
    found.examine(checkpoint, REFERENCE, FORMS[REFERENCE])
    return found


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.parametrize("name", HELD)
def test_greedy_agreement_with_float32_does_not_fall_below_the_promise(
    examination: Examination, checkpoint: Checkpoint, name: str
) -> None:
    found = total(examination.examine(checkpoint, name, FORMS[name]))
    assert found.num_positions == TOKENS * len(TEXTS)
    assert found.num_agreeing / found.num_positions >= (FORMS[name].floor or 1)


@pytest.mark.parametrize("name", HELD)
def test_the_promise_is_less_than_what_was_measured(name: str) -> None:
    document = json.loads((RESULTS / "quality-quantized.json").read_text(encoding="utf-8"))
    measured = document["forms"][name]["greedy_agreement"]
    assert (FORMS[name].floor or 1) <= measured <= 1


def test_every_format_of_one_byte_has_a_promise() -> None:
    assert {form.dtype for form in (torch.empty(0, dtype=FORMS[name].kv_dtype) for name in HELD)} >= {
        torch.int8,
        torch.float8_e4m3fn,
    }
    assert {"torch-int8", "torch-fp8"} <= set(HELD)
