"""Whether the step for NVIDIA GPUs can be had here, and with what."""

from __future__ import annotations

import functools
import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from engine.models.config import ModelConfig

LEAST_CAPABILITY = (8, 0)
"""Ampere: the first with bfloat16 in its matrix units."""

HOPPER = (9, 0)

ADA = (8, 9)
"""The first with conversions to and from float8."""

LEAST_TRITON = (3, 6)


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """What was found.

    Attributes:
        available: Whether the step runs on that device.
        reason: Half a sentence for people: why not, or on what.
        has_pdl: Kernels may start before those in front of them have ended.
        has_fp8: Kernels may read and write float8.
    """

    available: bool
    reason: str
    has_pdl: bool = False
    has_fp8: bool = True


@functools.cache
def cuda_status(device: torch.device) -> CudaStatus:
    """Looks at Triton and at a device; the answer is kept."""
    missing = _triton_refusal()
    if missing is not None:
        return CudaStatus(False, missing)
    if not torch.cuda.is_available():
        return CudaStatus(False, "torch sees no CUDA device")
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    if capability < LEAST_CAPABILITY:
        return CudaStatus(
            False, f"{name} has compute capability {_dotted(capability)}; {_dotted(LEAST_CAPABILITY)} is needed"
        )
    return CudaStatus(
        True, f"{name}, compute capability {_dotted(capability)}", capability >= HOPPER, capability >= ADA
    )


def cuda_refusal(config: ModelConfig) -> str | None:
    """Why the step cannot take a model of this shape; None if it can."""
    if config.head_dim % 8:
        return f"its heads have {config.head_dim} numbers, and a multiple of 8 is needed"
    if config.hidden_size % 16 or config.intermediate_size % 16:
        return "its widths are no multiples of 16"
    return None


def _triton_refusal() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        found = version("triton")
    except PackageNotFoundError:
        return "Triton is not installed"
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < LEAST_TRITON:
        return f"Triton {found} is installed; {_dotted(LEAST_TRITON)} is needed"
    return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
