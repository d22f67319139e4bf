"""Models that judge a text by one word: which two tokens stand for yes and no, as their files or an operator say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.text.tokenizer import Tokenizer

_MODULES = "modules.json"
_SCORE = "LogitScore"
_WORDS = "classifier_from_token"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Tokens of which a model says one.

    Attributes:
        no: The text does not fit.
        yes: It fits.
    """

    no: int
    yes: int


def load_judgement(path: Path, tokenizer: Tokenizer) -> Judgement | None:
    """Reads it off a model directory: `modules.json` of sentence-transformers, `classifier_from_token` of config.json.

    Returns:
        None where nothing is said.

    Raises:
        ModelLoadError: What says so is damaged, or asks for what is not done here.
    """
    if not path.is_dir():
        return None
    modules, config = path / _MODULES, path / "config.json"
    for entry in _read(modules, list) if modules.is_file() else ():
        if isinstance(entry, dict) and str(entry.get("type", "")).rpartition(".")[2] == _SCORE:
            return _of_score(path / str(entry.get("path", "")) / "config.json")
    words = _read(config, dict).get(_WORDS) if config.is_file() else None
    if words is None:
        return None
    if not isinstance(words, list) or len(words) != 2 or not all(isinstance(word, str) for word in words):
        raise ModelLoadError(f"{config}: {_WORDS!r} must be two words, that for no first")
    return named_judgement(words[0], words[1], tokenizer)


def named_judgement(no: str, yes: str, tokenizer: Tokenizer) -> Judgement:
    """The tokens of two words.

    Raises:
        ModelLoadError: A word is not one token, or both are the same.
    """
    found = [tokenizer.encode(word, add_special=False) for word in (no, yes)]
    for word, ids in zip((no, yes), found, strict=True):
        if len(ids) != 1:
            raise ModelLoadError(f"a reranker answers with one token, and {word!r} has {len(ids)} in this model")
    if found[0] == found[1]:
        raise ModelLoadError("a reranker needs two different words for no and yes")
    return Judgement(no=found[0][0], yes=found[1][0])


def _of_score(path: Path) -> Judgement:
    config = _read(path, dict)
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(yes, int) or not isinstance(no, int):
        raise ModelLoadError(f"{path}: only scores of two tokens are supported; name them, or none, for the reranker")
    return Judgement(no=no, yes=yes)


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, kind):
        raise ModelLoadError(f"{path}: must hold a JSON {'object' if kind is dict else 'array'}")
    return value
