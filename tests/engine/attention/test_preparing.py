"""Backends are prepared before the first step, those that want to be."""

from __future__ import annotations

import pytest
import torch

from engine.attention.cpu import CpuBackend
from engine.attention.flashinfer import FlashInferBackend
from engine.attention.preparing import prepare_backend
from engine.errors import ModelLoadError
from tests.engine.attention.flashinfer_double import SlowLibrary
from tests.engine.attention.test_contract import make_step


def test_a_backend_with_kernels_to_compile_gets_them_and_another_is_left_alone() -> None:
    storage = make_step(lanes=[(1, 1)], head_dim=128, dtype=torch.bfloat16).storage
    library = SlowLibrary()
    prepare_backend(FlashInferBackend(library), storage, 4, 100)
    assert {(form.head_dim, form.has_window) for form in library.modules} == {(128, True)}
    prepare_backend(CpuBackend(), storage, 4)


def test_a_model_that_a_backend_does_not_take_is_refused() -> None:
    storage = make_step(lanes=[(1, 1)], head_dim=16).storage
    with pytest.raises(ModelLoadError, match="not of 16 in float32"):
        prepare_backend(FlashInferBackend(SlowLibrary()), storage, 4)
