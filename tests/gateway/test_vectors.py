"""Vectors cut, scaled, compared and written, against numpy."""

from __future__ import annotations

import base64
from array import array

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.translate.vectors import cosine, shaped, written

floats = st.floats(-1e6, 1e6, width=32)
vectors = st.lists(floats, min_size=1, max_size=40).map(lambda values: array("f", values))


@given(vectors)
def test_a_normalised_vector_has_length_1_and_its_old_direction(values: array[float]) -> None:
    found = np.asarray(shaped(values, None, normalize=True), dtype=float)
    exact = np.asarray(values, dtype=float)
    length = np.sqrt((exact**2).sum())
    if length == 0:
        assert not found.any()
    else:
        np.testing.assert_allclose(found, exact / length, rtol=1e-6, atol=1e-30)


@given(vectors, st.integers(1, 40))
def test_cutting_comes_before_scaling(values: array[float], dimensions: int) -> None:
    assert shaped(values, dimensions, normalize=True) == shaped(values[:dimensions], None, normalize=True)
    assert shaped(values, dimensions, normalize=False) == values[:dimensions]


@given(vectors)
def test_both_spellings_are_the_same_numbers(values: array[float]) -> None:
    listed = msgspec.json.decode(written(values, "float"))
    packed = msgspec.json.decode(written(values, "base64"))
    assert listed == values.tolist()
    assert np.frombuffer(base64.b64decode(packed, validate=True), "<f4").tolist() == values.tolist()


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=40))
def test_the_cosine_is_that_of_numpy_and_never_beyond_1(pairs: list[tuple[float, float]]) -> None:
    first, second = (array("f", values) for values in zip(*pairs, strict=True))
    found = cosine(first, second)
    one, other = (np.asarray(values, dtype=float) for values in (first, second))
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    assert -1 <= found <= 1
    assert found == cosine(second, first)
    if lengths > 1e-60:
        assert found == pytest.approx(one @ other / lengths, abs=1e-9)


def test_a_vector_of_zeros_is_near_to_nothing() -> None:
    assert cosine(array("f", [0, 0]), array("f", [1, 2])) == 0.0
