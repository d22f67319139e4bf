"""What tests of several packages share: the real model, and how long a drawn example may take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from engine.sources.errors import SourceError
from engine.sources.store import ModelStore

if os.environ.get("WYE_TEST_DEVICE", "cuda" if torch.cuda.is_available() else "cpu") == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton: kernels run on CPU tensors then
else:
    os.environ["WYE_TEST_DEVICE"] = "cuda"

settings.register_profile("wye", deadline=None)  # tests say what is right, not how fast a busy machine is
settings.load_profile("wye")


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The SmolLM2 GGUF file; skipped where it is not stored (`make model`)."""
    home = os.environ.get("WYE_HOME") or Path(__file__).parents[1] / ".wye"
    try:
        return ModelStore(Path(home)).resolve(os.environ.get("WYE_TEST_MODEL", "smollm2-135m"))
    except SourceError as error:
        pytest.skip(str(error))


HEAVY = ("e2e", "loadtests", "native", "documentation", "cuda", "equivalence")
"""Directories whose files take longer than most."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest come first: later ones would keep one process busy when all others are done.

    Processes keep to this order with `--no-loadscope-reorder` alone: else files with few tests come last, and those of
    the real model have few.
    """
    slow = {item.path for item in items if "real_model" in item.keywords or "slow" in item.keywords}
    items.sort(key=lambda item: 0 if item.path in slow else 1 if set(item.path.parts) & set(HEAVY) else 2)
