"""The last layer leaves out rows that nobody reads: what is read, and what they leave behind, stays the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine.models.step import StepModel
from tests.native.forms import FORMS, native_decoder, needs_native
from tests.native.shapes import SHAPES
from tests.native.steps import Rows, make_pool, random_tokens, step_inputs

pytestmark = needs_native

CONFIG = SHAPES["odd_sizes"]
DECODING, PROMPT = 0, 1
"""Rows of the step below: one of a lane with a long context, and the first of another lane's prompt."""


def mixed_step(model: StepModel, readouts: Sequence[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a step beside a long context, then those of all rows of a step that follows it."""
    pool = make_pool(CONFIG, num_pages=128)
    long = pool.lane(random_tokens(CONFIG, 1102, 1))
    prompt = pool.lane(random_tokens(CONFIG, 50, 2))
    model.forward(step_inputs(pool.storage, [Rows(long, 1100)], []))
    long.num_computed = 1100
    asked = model.forward(step_inputs(pool.storage, [Rows(long, 1), Rows(prompt, 44)], readouts))
    long.num_computed, prompt.num_computed = 1101, 44
    return asked, model.forward(step_inputs(pool.storage, [Rows(long, 1), Rows(prompt, 6)]))


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_few_rows_read_out_are_the_same_as_among_all(form: str, weights: str, num_threads: int) -> None:
    model = native_decoder(CONFIG, form=form, int8=weights == "int8", num_threads=num_threads)
    every, after = mixed_step(model, None)
    for readouts in ([PROMPT + 43], [DECODING], [PROMPT + 43, DECODING, PROMPT + 20, DECODING], []):
        some, after_some = mixed_step(model, readouts)
        assert torch.equal(some, every[readouts])
        assert torch.equal(after_some, after)
