"""One GGUF file opened for reading: metadata decoded when asked for, tensors dequantised in bounded blocks."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

from engine.errors import ModelLoadError
from engine.gguf_metadata import array_end, read_metadata
from engine.models.keys import Keys

_TOKENS = "tokenizer.ggml.tokens"
_VOCABULARY = {_TOKENS, "tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}
"""Long arrays that a decoder's description has no use for."""

_ROW_ELEMENTS = 1 << 15
"""Elements of a row as the dequantising library is given it."""

_BLOCK_ELEMENTS = 1 << 22
"""Elements dequantised at a time: the float32 copy of a whole embedding would dwarf the model."""


class _TensorReader(GGUFReader):  # type: ignore[misc]  # the library has no types
    """Steps over arrays of metadata: the library would make an array object of every vocabulary entry."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            parts: tuple[int, list[Any], list[int], list[GGUFValueType]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        end = array_end(memoryview(self.data), orig_offs)
        return end - orig_offs, [self.data[orig_offs:end]], [0], [GGUFValueType.ARRAY]


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
            reader = _TensorReader(path)
        except (ValueError, KeyError, IndexError, OverflowError, OSError, MemoryError, struct.error) as error:
            raise ModelLoadError(f"{path}: not a whole GGUF file: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        size = path.stat().st_size
        for tensor in reader.tensors:
            if tensor.data_offset + tensor.n_bytes > size:
                raise ModelLoadError(f"{path}: truncated: tensor {tensor.name!r} ends past the end of the file")
        self.metadata = Keys(read_metadata(path, lambda key: key not in _VOCABULARY), path)

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
        # Blocks of quantised values follow one another whatever the rows: the library is quickest with rows as long
        # as 16 of them fill a cache, and with a plain array, since each slice of a mapped one costs microseconds.
        rows = result.view(-1, result.shape[-1] * _rows_together(result))
        data = np.asarray(stored.data).reshape(rows.shape[0], -1)
        step = max(1, _BLOCK_ELEMENTS // rows.shape[1])
        for start in range(0, rows.shape[0], step):
            block = self._dequantize(name, data[start : start + step], stored.tensor_type)
            rows[start : start + step].copy_(torch.from_numpy(block))
        return result

    def array_items(self, key: str, wanted: int) -> dict[int, str]:
        """Strings of `tokenizer.ggml.tokens` whose entry in the integer array `key` is `wanted`, by position."""
        arrays = read_metadata(self.path, lambda name: name in (key, _TOKENS))
        kinds, tokens = arrays.get(key, []), arrays.get(_TOKENS, [])
        if len(kinds) != len(tokens):
            return {}
        return {index: tokens[index] for index, kind in enumerate(kinds) if kind == wanted}

    def _dequantize(self, name: str, data: np.ndarray[Any, Any], kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
        try:
            block: np.ndarray[Any, Any] = dequantize(data, kind)
        except NotImplementedError as error:
            raise ModelLoadError(f"{self.path}: tensor {name!r}: type {kind.name} is not supported") from error
        # The file is mapped read-only and torch insists on writable memory.
        return block if block.flags.writeable else block.copy()


def _rows_together(tensor: torch.Tensor) -> int:
    """How many rows of a tensor to treat as one: a divisor of their number, up to `_ROW_ELEMENTS` in all."""
    num_rows = tensor.numel() // tensor.shape[-1]
    together = 1
    while num_rows % (together * 2) == 0 and together * 2 * tensor.shape[-1] <= _ROW_ELEMENTS:
        together *= 2
    return together
