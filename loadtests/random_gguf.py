"""A GGUF file of random weights with another file's shapes, metadata and vocabulary, for `loadtests.peers`.

What speed a processor reaches does not depend on the numbers, so it can be measured where the weights cannot be had.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from engine.models.gguf_file import GGUFFile

_OWN_KEYS = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", gguf.Keys.General.ARCHITECTURE}
"""Keys that the writer makes itself."""

_BLOCK_ROWS = 4096
"""Rows of a matrix drawn at a time: float64 copies of a whole embedding would dwarf the model."""


def random_gguf(source: Path, directory: Path) -> Path:
    """Random weights in the shape of `source`, matrices in bfloat16; written once and kept.

    Args:
        source: A GGUF file, of which only head and size are looked at.
        directory: Where to keep what is written.

    Raises:
        ModelLoadError: The file is missing, no GGUF, truncated or damaged.
    """
    file = GGUFFile(source)
    stat = source.stat()
    name = f"random-{source.stem.replace('.', '-')}-{stat.st_size}-{int(stat.st_mtime)}.BF16.gguf"
    path = directory / name
    if not path.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        _write(file, partial)
        partial.rename(path)
    return path


def _write(file: GGUFFile, path: Path) -> None:
    reader = gguf.GGUFReader(file.path)
    writer = gguf.GGUFWriter(path, reader.fields[gguf.Keys.General.ARCHITECTURE].contents())
    for key, field in reader.fields.items():
        if key in _OWN_KEYS:
            continue
        if key == gguf.Keys.General.FILE_TYPE:
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
            continue
        kind = field.types[0]
        items = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=items)
    for tensor in reader.tensors:
        shape = file.shape(tensor.name)
        if len(shape) == 1:
            # Norms and factors of positions change nothing, and neither do biases.
            fill = np.zeros if tensor.name.endswith(".bias") else np.ones
            writer.add_tensor(tensor.name, fill(shape, np.float32))
        else:
            matrix = np.concatenate(list(_random_rows(tensor.name, shape)))
            writer.add_tensor(tensor.name, matrix.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_rows(name: str, shape: tuple[int, ...]) -> Iterator[npt.NDArray[Any]]:
    """Bits of bfloat16, scaled by the input width so that no sum fades or overflows with depth; `name` is the seed."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    width = shape[-1]
    num_rows = int(np.prod(shape[:-1]))
    for start in range(0, num_rows, _BLOCK_ROWS):
        values = rng.standard_normal((min(_BLOCK_ROWS, num_rows - start), width), np.float32) * width**-0.5
        yield (values.view(np.uint32) >> 16).astype(np.uint16)
