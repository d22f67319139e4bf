"""A guess must be the likelier right the more a row costs and the more rows there are."""

from __future__ import annotations

import pytest

from engine.drafting.costs import least_probability, row_cost


def test_one_sequence_may_guess_boldly_and_many_may_not() -> None:
    least = [least_probability(0.1, num_rows) for num_rows in (1, 8, 64)]
    assert least == pytest.approx([1 / 11, 8 / 18, 64 / 74])
    assert least_probability(0.0, 64) == 0.0


def test_rows_cost_more_where_multiplying_is_slow_beside_reading() -> None:
    amx = row_cost("native amx", "cpu", "bfloat16")
    assert amx < row_cost("native avx512bf16", "cpu", "bfloat16") < row_cost("torch", "cpu", "bfloat16")
    assert row_cost("torch", "cuda:0", "bfloat16") < amx < row_cost("native amx", "cpu", "int8")
    assert row_cost("native avx2", "cpu", "bfloat16") == row_cost("torch", "cpu", "bfloat16")
