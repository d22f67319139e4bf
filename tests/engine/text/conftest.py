"""The real model's tokenizer and template."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.text.model import TextModel


@pytest.fixture(scope="session")
def smollm2(real_model_path: Path) -> TextModel:
    """Tokenizer and template of SmolLM2; skipped where the model is not stored (`make model`)."""
    return TextModel.load(real_model_path)
