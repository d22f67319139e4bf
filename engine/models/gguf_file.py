"""One GGUF file opened for reading: metadata decoded when asked for, tensors dequantised in bounded blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from engine.errors import ModelLoadError
from engine.models.keys import Keys

_BLOCK_ELEMENTS = 1 << 22
"""Elements dequantised at a time: the float32 copy of a whole embedding would dwarf the model."""


class _Metadata(Mapping[str, Any]):
    """GGUF fields by name; decoding a vocabulary costs a second, so nothing is decoded before it is asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].contents()

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class GGUFFile:
    """A GGUF file whose header has been read and whose tensors all lie inside the file.

    Attributes:
        path: The file.
        metadata: Its key/value part.
    """

    def __init__(self, path: Path) -> None:
        """Reads the header.

        Raises:
            ModelLoadError: The file is missing, no GGUF, truncated or damaged.
        """
        self.path = path
        if not path.is_file():
            raise ModelLoadError(f"{path}: no such file")
        try:
            reader = GGUFReader(path)
        except (ValueError, KeyError, IndexError, OverflowError, OSError, MemoryError, UnicodeDecodeError) as error:
            raise ModelLoadError(f"{path}: not a whole GGUF file: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        size = path.stat().st_size
        for tensor in reader.tensors:
            if tensor.data_offset + tensor.n_bytes > size:
                raise ModelLoadError(f"{path}: truncated: tensor {tensor.name!r} ends past the end of the file")
        self.metadata = Keys(_Metadata(reader.fields), path)
        self._fields = reader.fields

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, outermost first."""
        return tuple(reversed([int(size) for size in self._tensors[name].shape]))

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Dequantises one tensor into new memory.

        Raises:
            ModelLoadError: Its quantisation is of an unsupported kind.
        """
        stored = self._tensors[name]
        result = torch.empty(self.shape(name), dtype=dtype)
        rows, data = result.view(-1, result.shape[-1]), stored.data.reshape(-1, stored.data.shape[-1])
        step = max(1, _BLOCK_ELEMENTS // rows.shape[1])
        for start in range(0, rows.shape[0], step):
            block = self._dequantize(name, data[start : start + step], stored.tensor_type)
            rows[start : start + step].copy_(torch.from_numpy(block))
        return result

    def array_items(self, key: str, wanted: int) -> dict[int, str]:
        """Strings of `tokenizer.ggml.tokens` whose entry in the integer array `key` is `wanted`, by position."""
        kinds, tokens = self._fields.get(key), self._fields.get("tokenizer.ggml.tokens")
        if kinds is None or tokens is None or len(kinds.data) != len(tokens.data):
            return {}
        values = np.asarray(kinds.contents())
        return {
            int(index): bytes(tokens.parts[tokens.data[index]]).decode("utf-8", "replace")
            for index in np.flatnonzero(values == wanted)
        }

    def _dequantize(self, name: str, data: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
        try:
            block: np.ndarray[Any, Any] = dequantize(data, kind)
        except NotImplementedError as error:
            raise ModelLoadError(f"{self.path}: tensor {name!r}: type {kind.name} is not supported") from error
        # The file is mapped read-only and torch insists on writable memory.
        return block if block.flags.writeable else block.copy()
