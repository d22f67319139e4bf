"""Which model to measure: a name of the model store, a path, or random weights of a known shape."""

from __future__ import annotations

import os
from pathlib import Path

from engine.sources.store import ModelStore
from loadtests.server import CHECKOUT


def locate(model: str) -> Path:
    """Path of a stored or local model; nothing is fetched.

    Raises:
        SourceError: There is no such model here.
    """
    return ModelStore(Path(os.environ.get("WYE_HOME") or CHECKOUT / ".wye")).resolve(model)
