"""Reads the key-value head of a GGUF file, and nothing else of it.

`gguf.GGUFReader` makes an array object of every vocabulary entry, which takes seconds; this gives plain Python values,
and only those that are wanted. It needs neither numpy nor torch, so that a gateway worker can use it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_MAX_ARRAY = 1 << 26

Buffer = mmap.mmap | memoryview


def read_metadata(path: str | Path, wanted: Callable[[str], bool] = lambda _key: True) -> dict[str, Any]:
    """Returns the metadata of a GGUF file (versions 2 and 3) by key.

    Args:
        path: The file.
        wanted: Keys for which it is false are skipped.

    Raises:
        ModelLoadError: The file is missing, no GGUF, or its head is cut off or damaged.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata(wanted)
    except (OSError, ValueError, struct.error, KeyError) as error:
        raise ModelLoadError(f"{path}: not a readable GGUF file: {error}") from error


def array_end(data: Buffer, start: int) -> int:
    """Where an array value ends that begins, with the type of its entries, at `start`.

    Raises:
        ValueError: Its entries are of no known type.
        struct.error: It runs past the end of the data.
    """
    reader = _Reader(data, start)
    reader.skip(_ARRAY)
    return reader.at


class _Reader:
    """A cursor over the head of the file; all numbers are little-endian."""

    def __init__(self, data: Buffer, at: int = 0) -> None:
        self._data = data
        self.at = at

    def metadata(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        if self._data[:4] != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        self.at = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not supported (only {_VERSIONS})")
        self._scalar("Q")
        num_keys = self._scalar("Q")
        values: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string().decode("utf-8")
            kind = self._scalar("I")
            if wanted(key):
                values[key] = self._value(kind)
            else:
                self.skip(kind)
        return values

    def _scalar(self, code: str) -> Any:
        fmt = "<" + code
        (value,) = struct.unpack_from(fmt, self._data, self.at)
        self.at += struct.calcsize(fmt)
        return value

    def _string(self) -> bytes:
        length = self._scalar("Q")
        start, self.at = self.at, self.at + length
        if self.at > len(self._data):
            raise ValueError("a string runs past the end of the file")
        return bytes(self._data[start : self.at])

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, length = self._scalar("I"), self._scalar("Q")
        if length > _MAX_ARRAY:
            raise ValueError(f"an array of {length} entries")
        if kind == _STRING:
            return self._strings(length)
        if kind == _ARRAY:
            return [self._array() for _ in range(length)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        fmt = f"<{length}{_SCALARS[kind]}"
        values = struct.unpack_from(fmt, self._data, self.at)
        self.at += struct.calcsize(fmt)
        return list(values)

    def skip(self, kind: int) -> None:
        """Steps over a value."""
        if kind == _STRING:
            self._string()
        elif kind != _ARRAY:
            self._value(kind)
        else:
            kind, length = self._scalar("I"), self._scalar("Q")
            if kind in _SCALARS:
                self.at += length * struct.calcsize("<" + _SCALARS[kind])
            elif kind == _STRING:
                self._skip_strings(length)
            else:
                for _ in range(length):
                    self.skip(kind)

    def _skip_strings(self, length: int) -> None:
        data, at, unpack = self._data, self.at, struct.Struct("<Q").unpack_from
        for _ in range(length):
            at += 8 + unpack(data, at)[0]
        self.at = at

    def _strings(self, length: int) -> list[str]:
        # The hot loop of loading: a hundred thousand tokens and as many merges.
        data, at, unpack = self._data, self.at, struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(length):
            (size,) = unpack(data, at)
            at += 8 + size
            if at > len(data):
                raise ValueError("a string runs past the end of the file")
            strings.append(bytes(data[at - size : at]).decode("utf-8", "replace"))
        self.at = at
        return strings
