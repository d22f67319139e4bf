"""Digests of what a script passes to the server: the same for the same, in any process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder(enc_hook=lambda value: type(value).__name__).encode
_DIGEST_BYTES = 9


def digest_of(value: object) -> str:
    """Digest of plain data; what is none counts as its type."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        data = repr(_plain(value, 32)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


def _plain(value: object, depth: int) -> Any:
    """The same with type names for all that is no plain data."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if depth and isinstance(value, Mapping):
        return [(_plain(key, depth - 1), _plain(item, depth - 1)) for key, item in value.items()]
    if depth and isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    return type(value).__name__
