"""Which model to measure: a name of the model store, a path, or random weights of a known shape."""

from __future__ import annotations

import os
from pathlib import Path

from engine.sources.store import ModelStore
from loadtests.server import CHECKOUT


def home() -> Path:
    """Where models, and peers built or installed for comparison, are kept: WYE_HOME, else `.wye` of the checkout."""
    return Path(os.environ.get("WYE_HOME") or CHECKOUT / ".wye")


def locate(model: str) -> Path:
    """Path of a stored or local model; nothing is fetched.

    Raises:
        SourceError: There is no such model here.
    """
    return ModelStore(home()).resolve(model)


def gguf_of(model: str) -> Path:
    """GGUF file of a stored or local model, for peers that read nothing else.

    Raises:
        SourceError: There is no such model here.
        ValueError: It is not a GGUF file.
    """
    path = locate(model)
    if path.suffix != ".gguf":
        raise ValueError(f"{model} is kept as {path}, and llama.cpp needs a GGUF file")
    return path
