"""A cheap digest that tells one set of weights from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from engine.models.config import ModelConfig

_SAMPLES = 256
_SAMPLE_BYTES = 4096


def fingerprint(config: ModelConfig, files: Iterable[Path]) -> str:
    """Digests a configuration and its weight files without reading them whole.

    Of each file it takes the size, the first megabyte (headers name every tensor) and evenly spread samples, so two
    copies of a model agree wherever they lie and a fine-tuned model differs from its base.

    Returns:
        32 hex digits.
    """
    digest = hashlib.blake2b(repr(config).encode(), digest_size=16)
    for path in files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            for index in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
