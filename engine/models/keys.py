"""Typed reading of a model's description: every complaint names the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from engine.errors import ModelLoadError


class _Required:
    """Marks a key without which nothing can be loaded."""


REQUIRED: Final = _Required()


class Keys:
    """One mapping of a model file. A key that is absent and a key that is null mean the same.

    Attributes:
        file: The file the mapping comes from, for messages.
    """

    def __init__(self, source: Mapping[str, Any], file: Path, prefix: str = "") -> None:
        self._source = source
        self._prefix = prefix
        self.file = file

    def __contains__(self, key: str) -> bool:
        return self._source.get(key) is not None

    def has_null(self, key: str) -> bool:
        """Whether the key is written down as null, for the few dialects in which that differs from absent."""
        return key in self._source and self._source[key] is None

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raises what is wrong with a key.

        Raises:
            ModelLoadError: Always.
        """
        raise ModelLoadError(f"{self.file}: key {self._prefix}{key!r} {problem}")

    def raw(self, key: str) -> Any:
        """The value as it stands, or None."""
        return self._source.get(key)

    def names(self) -> set[str]:
        """Keys that have a value."""
        return {name for name, value in self._source.items() if value is not None}

    def integer(self, key: str, default: int | _Required = REQUIRED, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`.

        Raises:
            ModelLoadError: It is missing without a default, of another kind, or too small.
        """
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be a whole number, not {value!r}")
        if value < minimum:
            self.fail(key, f"must be at least {minimum}, not {value}")
        return value

    def number(self, key: str, default: float | _Required = REQUIRED, *, above: float = 0.0) -> float:
        """A finite number above `above`.

        Raises:
            ModelLoadError: It is missing without a default, of another kind, or out of range.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, f"must be a number, not {value!r}")
        if not math.isfinite(value) or value <= above:
            self.fail(key, f"must be a finite number above {above:g}, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool | _Required = REQUIRED) -> bool:
        """True or false.

        Raises:
            ModelLoadError: It is missing without a default, or something else.
        """
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        """A string.

        Raises:
            ModelLoadError: It is missing without a default, or something else.
        """
        value = self._value(key, default)
        if not isinstance(value, str):
            self.fail(key, f"must be a string, not {value!r}")
        return value

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Token ids, given alone or as a list; none if the key is absent.

        Raises:
            ModelLoadError: One of them is no id of the vocabulary.
        """
        value = self.raw(key)
        if value is None:
            return ()
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        for one in values:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < vocab_size:
                self.fail(key, f"holds {one!r}, which is no token id below the vocabulary's size {vocab_size}")
        return tuple(values)

    def nested(self, key: str) -> Keys | None:
        """The mapping under a key, or None if absent.

        Raises:
            ModelLoadError: The key holds something else than a mapping.
        """
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(key, f"must be an object, not {value!r}")
        return Keys(value, self.file, f"{self._prefix}{key}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self._source.get(key)
        if value is not None:
            return value
        if isinstance(default, _Required):
            self.fail(key, "is missing")
        return default
