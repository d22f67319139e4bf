"""What one byte can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A format of one byte a number.

    Attributes:
        name: As settings call it.
        dtype: Torch's name of it.
        most: Greatest magnitude.
    """

    name: str
    dtype: torch.dtype
    most: float

    def codes(self, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The nearest numbers of this format to `values / scale`, clamped; 0 where the scale is 0.

        Args:
            values: Any float dtype.
            scale: float32, broadcast over the values.
        """
        scaled = values.float() / torch.where(scale == 0, 1.0, scale)
        if self.dtype == torch.int8:
            scaled = scaled.round_()
        return scaled.clamp_(-self.most, self.most).to(self.dtype)


FORMATS: Mapping[str, NumberFormat] = {
    "int8": NumberFormat("int8", torch.int8, 127.0),
    "fp8": NumberFormat("fp8", torch.float8_e4m3fn, 448.0),
}
"""Every format by its name."""


def format_of(dtype: torch.dtype) -> NumberFormat | None:
    """The format of a dtype; None for dtypes that need no scales."""
    return next((each for each in FORMATS.values() if each.dtype == dtype), None)


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as settings call it."""
    quantized = format_of(dtype)
    return str(dtype).removeprefix("torch.") if quantized is None else quantized.name
