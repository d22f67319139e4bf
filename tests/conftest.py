"""What tests of several packages share: the real model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.sources.errors import SourceError
from engine.sources.store import ModelStore


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The SmolLM2 GGUF file; skipped where it is not stored (`make model`)."""
    home = os.environ.get("WYE_HOME") or Path(__file__).parents[1] / ".wye"
    try:
        return ModelStore(Path(home)).resolve(os.environ.get("WYE_TEST_MODEL", "smollm2-135m"))
    except SourceError as error:
        pytest.skip(str(error))
