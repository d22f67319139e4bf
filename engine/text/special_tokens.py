"""Which tokens of a Hugging Face directory are special, and what they are called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that models give a role; chat templates see them under these names."""


def read_json(path: Path) -> dict[str, Any]:
    """Reads one JSON object; a missing file is an empty one.

    Raises:
        ModelLoadError: The file is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_tokenizer_config(directory: Path) -> dict[str, Any]:
    """Returns `tokenizer_config.json`, completed from `special_tokens_map.json` of older directories."""
    return read_json(directory / "special_tokens_map.json") | {
        key: value for key, value in read_json(directory / "tokenizer_config.json").items() if value is not None
    }


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tokens with a role by name, those that the model has."""
    named = {name: token_content(config.get(name)) for name in NAMES}
    return {name: content for name, content in named.items() if content is not None}


def extra_tokens(config: Mapping[str, Any]) -> list[str]:
    """Returns the special tokens without a role that the configuration lists."""
    listed = [*_values(config.get("additional_special_tokens")), *_values(config.get("extra_special_tokens"))]
    return [content for content in map(token_content, listed) if content is not None]


def token_content(value: object) -> str | None:
    """The text of a token as configurations write it: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _values(listed: object) -> list[Any]:
    if isinstance(listed, dict):
        return list(listed.values())
    return list(listed) if isinstance(listed, list) else []
