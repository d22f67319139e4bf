"""Where the real model's tokenizer comes from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.sources.errors import SourceError
from engine.sources.store import ModelStore
from engine.text.model import TextModel


@pytest.fixture(scope="session")
def smollm2() -> TextModel:
    """Tokenizer and template of SmolLM2; skipped where the model is not stored (`make model`)."""
    home = os.environ.get("WYE_HOME") or Path(__file__).parents[3] / ".wye"
    try:
        path = ModelStore(Path(home)).resolve(os.environ.get("WYE_TEST_MODEL", "smollm2-135m"))
    except SourceError as error:
        pytest.skip(str(error))
    return TextModel.load(path)
