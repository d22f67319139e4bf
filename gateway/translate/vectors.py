"""Embeddings as clients want them: cut, scaled, compared, written."""

from __future__ import annotations

import base64
import math
import operator
import sys
from array import array
from typing import TypeAlias

import msgspec

Vector: TypeAlias = "array[float]"
"""float32 values."""

_encode = msgspec.json.Encoder().encode


def shaped(values: Vector, dimensions: int | None, *, normalize: bool) -> Vector:
    """The leading values, scaled to length 1 if asked for; a vector of zeros stays one."""
    kept = values if dimensions is None else values[:dimensions]
    length = math.hypot(*kept)
    if not normalize or length == 0.0:
        return kept
    return array("f", [value / length for value in kept])


def cosine(first: Vector, second: Vector) -> float:
    """How near two vectors point to the same direction: -1..1; 0 if one is all zeros."""
    lengths = math.hypot(*first) * math.hypot(*second)
    if lengths == 0.0:
        return 0.0
    return min(1.0, max(-1.0, math.fsum(map(operator.mul, first, second)) / lengths))


def written(values: Vector, encoding_format: str) -> msgspec.Raw:
    """The values as JSON: a list of numbers, or a string with little-endian float32 in base64."""
    if encoding_format == "float":
        return msgspec.Raw(_encode(values.tolist()))
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return msgspec.Raw(b'"' + base64.b64encode(values) + b'"')
