"""Kernels run interpreted on CPU tensors, or on a GPU where `WYE_TEST_DEVICE=cuda` says so."""

from __future__ import annotations

import os

import pytest
import torch

from tests.engine.interpreting import mend_interpreter

mend_interpreter()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the kernels' tensors lie."""
    return torch.device(os.environ.get("WYE_TEST_DEVICE", "cpu"))


@pytest.fixture
def coarse_cuts(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of one row by few programs, where they run one after the other anyway."""
    if device.type == "cpu":
        monkeypatch.setattr("engine.cuda.kernels.gemv_configs._FEWEST_PROGRAMS", 1)
