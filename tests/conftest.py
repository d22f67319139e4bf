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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of the real model come first: they take longest, and would keep one process busy when others are done."""
    slow = {item.path for item in items if "real_model" in item.keywords}
    items.sort(key=lambda item: item.path not in slow)
