"""Hidden states that the native step gives out are the final norm's output, the same whatever shares the step.

Held against `Decoder` in float32 on the same weights, in shares of the states' standard deviation; how far rounding may
carry them is derived in `test_step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention.sdpa import SdpaBackend
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.step import HiddenReadout, StepInputs, StepModel
from engine.native.library import native_module
from tests.native.forms import FORMS, native_decoder, needs_native
from tests.native.shapes import SHAPES, random_weights
from tests.native.steps import Pool, Rows, make_pool, random_tokens, step_inputs

pytestmark = needs_native

ROOT_MEAN_SQUARE = {"bfloat16": 0.02, "int8": 0.06}
CONFIG = SHAPES["odd_sizes"]


def asking(inputs: StepInputs, rows: Sequence[int], config: ModelConfig) -> StepInputs:
    """The same step with the hidden states of some rows wanted; they are NaN until the model writes them."""
    states = torch.full((len(rows), config.hidden_size), float("nan"))
    return replace(inputs, hidden=HiddenReadout(torch.tensor(rows, dtype=torch.int64), states))


def play(
    model: StepModel, pool: Pool, config: ModelConfig, chunks: Sequence[int], lengths: Sequence[int]
) -> torch.Tensor:
    """Runs lanes of some lengths side by side in chunks and returns the hidden states of all rows, lane by lane."""
    lanes = [pool.lane(random_tokens(config, length, seed)) for seed, length in enumerate(lengths)]
    found: list[list[torch.Tensor]] = [[] for _ in lanes]
    for most in chunks:
        work = [
            (place, Rows(lane, min(most, len(lane.token_ids) - lane.num_computed))) for place, lane in enumerate(lanes)
        ]
        work = [(place, rows) for place, rows in work if rows.num_rows > 0]
        num_rows = sum(rows.num_rows for _, rows in work)
        inputs = asking(step_inputs(pool.storage, [rows for _, rows in work], [0]), range(num_rows), config)
        model.forward(inputs)
        assert inputs.hidden is not None
        states = torch.split(inputs.hidden.states, [rows.num_rows for _, rows in work])
        for (place, rows), part in zip(work, states, strict=True):
            rows.lane.num_computed += rows.num_rows
            found[place].append(part)
    assert all(lane.num_computed == len(lane.token_ids) for lane in lanes)
    return torch.cat([part for parts in found for part in parts])


def errors(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Differences in standard deviations of the exact states."""
    return (found - exact) / exact.std()


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_what_the_decoder_in_torch_finds(shape: str, form: str, weights: str) -> None:
    config = SHAPES[shape]
    exact = Decoder(config, random_weights(config, torch.float32), SdpaBackend())
    expected = play(exact, make_pool(config, dtype=torch.float32), config, [64], [64, 3])
    found = play(native_decoder(config, form=form, int8=weights == "int8"), make_pool(config), config, [64], [64, 3])
    assert errors(found, expected).square().mean().sqrt() < ROOT_MEAN_SQUARE[weights]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("chunks", [[1] * 40, [7] * 6, [40]])
def test_they_are_the_same_to_the_bit_alone_and_beside_others(num_threads: int, chunks: list[int]) -> None:
    alone = play(native_decoder(CONFIG), make_pool(CONFIG), CONFIG, [40], [40])
    model = native_decoder(CONFIG, num_threads=num_threads)
    together = play(model, make_pool(CONFIG, shuffled=1), CONFIG, chunks, [40, 5, 23])
    assert torch.equal(together[:40], alone)


def test_logits_are_the_same_whether_or_not_states_are_given_out() -> None:
    model = native_decoder(CONFIG, num_threads=2)
    tokens = random_tokens(CONFIG, 30, 1)
    plain_pool, asked_pool = make_pool(CONFIG), make_pool(CONFIG)
    plain = model.forward(step_inputs(plain_pool.storage, [Rows(plain_pool.lane(tokens), 30)]))
    asked = step_inputs(asked_pool.storage, [Rows(asked_pool.lane(tokens), 30)])
    assert torch.equal(model.forward(asking(asked, [29, 0, 0, 17], CONFIG)), plain)


def test_rows_may_repeat_and_come_in_any_order_and_no_logits_are_needed() -> None:
    model = native_decoder(CONFIG)
    expected = play(model, make_pool(CONFIG), CONFIG, [30], [30])
    pool = make_pool(CONFIG)
    inputs = step_inputs(pool.storage, [Rows(pool.lane(random_tokens(CONFIG, 30, 0)), 30)], [])
    inputs = asking(inputs, [29, 0, 0, 17], CONFIG)
    assert model.forward(inputs).shape == (0, CONFIG.vocab_size)
    assert inputs.hidden is not None
    assert torch.equal(inputs.hidden.states, expected[[29, 0, 0, 17]])


@pytest.mark.parametrize("row", [-1, 4, 2**40])
def test_a_row_that_the_step_does_not_have_is_refused(row: int) -> None:
    model, pool = native_decoder(CONFIG), make_pool(CONFIG)
    inputs = step_inputs(pool.storage, [Rows(pool.lane([1, 2, 3, 4]), 4)])
    with pytest.raises(ValueError, match=rf"hidden_rows\[1\] is {row}, expected 0\.\.3"):
        model.forward(asking(inputs, [0, row], CONFIG))


def test_a_place_of_the_wrong_size_or_kind_is_refused() -> None:
    model, pool = native_decoder(CONFIG), make_pool(CONFIG)
    inputs = step_inputs(pool.storage, [Rows(pool.lane([1, 2, 3, 4]), 4)])
    rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="hidden must hold 100 values, got 50"):
        model.forward(replace(inputs, hidden=HiddenReadout(rows, torch.zeros(1, 50))))
    with pytest.raises(ValueError, match="hidden must hold floats of 4 bytes"):
        model.forward(replace(inputs, hidden=HiddenReadout(rows, torch.zeros(2, 50, dtype=torch.float64))))


def test_rows_without_a_place_for_them_are_refused() -> None:
    module = native_module()
    assert module is not None
    empty = np.zeros(0, dtype=np.int64)
    with pytest.raises(TypeError, match="go together"):
        module.step(object(), *[empty] * 10, empty)
