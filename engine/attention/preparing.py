"""Backends that want to know a model and its pool of K and V before the first step."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from engine.attention.backend import AttentionBackend
from engine.kv.storage import KVStorage


@runtime_checkable
class PreparedBackend(Protocol):
    """A backend with kernels to compile, or that does not take every model."""

    def prepare(self, storage: KVStorage, num_heads: int, sliding_window: int | None) -> None:
        """Makes ready what the first step would otherwise wait for.

        Args:
            storage: The pool.
            num_heads: Query heads of the model.
            sliding_window: Of its layers, or None.

        Raises:
            ModelLoadError: The backend does not take such a model or pool, or cannot be made ready here.
        """
        ...


def prepare_backend(
    backend: AttentionBackend, storage: KVStorage, num_heads: int, sliding_window: int | None = None
) -> None:
    """Prepares a backend, if it wants to be.

    Raises:
        ModelLoadError: It does not take such a model or pool, or cannot be made ready here.
    """
    if isinstance(backend, PreparedBackend):
        backend.prepare(storage, num_heads, sliding_window)
