"""How a model's authors make embeddings of hidden states: what sentence-transformers and llama.cpp write beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.gguf_metadata import read_metadata
from engine.request import Pooling

_MODULES = "modules.json"
_KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize", "LogitScore"})
"""What sentence-transformers may do with a text; whatever else it may do is not done here."""

_MODE_PREFIX = "pooling_mode_"
_MODES = {"mean_tokens": Pooling.MEAN, "lasttoken": Pooling.LAST}
_NAMED_MODES = {"mean": Pooling.MEAN, "lasttoken": Pooling.LAST}
_GGUF_MODES = {1: Pooling.MEAN, 3: Pooling.LAST}
_GGUF_NONE = 0


def load_pooling(path: Path) -> Pooling | None:
    """Reads how the model of a directory or a GGUF file is pooled; None where nothing is said.

    Raises:
        ModelLoadError: It is pooled in a way that is not known here, or what says so is damaged.
    """
    if path.is_dir():
        return _of_directory(path)
    return _of_gguf(path) if path.is_file() else None


def _of_directory(directory: Path) -> Pooling | None:
    folder = directory / "1_Pooling"
    modules = directory / _MODULES
    if modules.is_file():
        entries = _read(modules, list)
        kinds = {str(entry.get("type", "")).rpartition(".")[2]: entry for entry in entries if isinstance(entry, dict)}
        for kind in kinds.keys() - _KNOWN_MODULES:
            raise ModelLoadError(f"{modules}: the module {kind!r} is not supported for embeddings")
        folder = directory / str(kinds.get("Pooling", {}).get("path", folder.name))
    path = folder / "config.json"
    return _of_config(path) if path.is_file() else None


def _of_config(path: Path) -> Pooling:
    config = _read(path, dict)
    if config.get("include_prompt") is False:
        raise ModelLoadError(f"{path}: 'include_prompt' is false, which is not supported")
    named = config.get("pooling_mode")
    if isinstance(named, str):
        mode, known = named, _NAMED_MODES
    else:
        on = [key.removeprefix(_MODE_PREFIX) for key, value in config.items() if key.startswith(_MODE_PREFIX) and value]
        mode, known = "+".join(on) or "nothing", _MODES
    if mode not in known:
        raise ModelLoadError(f"{path}: the pooling {mode!r} is not supported; name one of {', '.join(Pooling)}")
    return known[mode]


def _of_gguf(path: Path) -> Pooling | None:
    found = read_metadata(path, lambda key: key.endswith(".pooling_type"))
    for key, value in found.items():
        if value == _GGUF_NONE:
            continue
        if value not in _GGUF_MODES:
            raise ModelLoadError(f"{path}: {key} {value!r} is not supported; name one of {', '.join(Pooling)}")
        return _GGUF_MODES[value]
    return None


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, kind):
        raise ModelLoadError(f"{path}: must hold a JSON {'object' if kind is dict else 'array'}")
    return value
