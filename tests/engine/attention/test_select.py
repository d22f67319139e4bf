"""Backends by name and by device."""

from __future__ import annotations

import pytest

from engine.attention.select import BACKENDS, choose_backend, select_backend
from engine.errors import ModelLoadError


def test_auto_takes_the_best_of_the_device_and_says_why() -> None:
    assert choose_backend("auto", "cpu").backend.name == "cpu"
    assert "cpu" in choose_backend("auto", "cpu").reason
    assert choose_backend("auto", "cuda:0").backend.name == "sdpa"


def test_a_name_is_taken_as_asked() -> None:
    for name, row in BACKENDS.items():
        if row.devices is None or "cpu" in row.devices:
            assert select_backend(name, "cpu").name == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"'flash9'.*auto, cpu, .*sdpa"):
        select_backend("flash9", "cpu")


def test_a_backend_is_refused_on_a_device_it_does_not_run_on() -> None:
    with pytest.raises(ModelLoadError, match=r"'cpu' runs on cpu, not on cuda"):
        select_backend("cpu", "cuda")
