"""Chooses the attention backend by name, or by device, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.cpu import CpuBackend
from engine.attention.cudnn_library import cudnn_refusal
from engine.attention.flashinfer import FlashInferBackend
from engine.attention.sdpa import SdpaBackend
from engine.attention.xformers import XFormersBackend
from engine.cuda.status import cuda_status
from engine.errors import ModelLoadError


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendRow:
    """One backend that can be chosen.

    Attributes:
        make: Builds it.
        devices: Device types it runs on; None means any.
        reads_quantized: It reads K and V that are kept as int8 or fp8 (`engine.quantization`).
        refusal: Why it does not run on a device of those types; None if it does.
    """

    make: Callable[[], AttentionBackend]
    devices: tuple[str, ...] | None = None
    reads_quantized: bool = False
    refusal: Callable[[torch.device], str | None] = lambda device: None


def _make_triton() -> AttentionBackend:
    from engine.attention.triton import TritonBackend  # not where there is no Triton

    return TritonBackend()


def _make_cudnn() -> AttentionBackend:
    from engine.attention.cudnn import CudnnBackend
    from engine.attention.triton import TritonBackend

    return CudnnBackend(TritonBackend())


def _mixed(make_long: Callable[[], AttentionBackend]) -> AttentionBackend:
    from engine.attention.mixed import MixedBackend

    return MixedBackend(_make_triton(), make_long)


def _triton_refusal(device: torch.device) -> str | None:
    status = cuda_status(device)
    return None if status.available else status.reason


def _cudnn_refusal(device: torch.device) -> str | None:
    refusal = _triton_refusal(device)
    if refusal is not None:
        return refusal
    return cudnn_refusal(device)


BACKENDS: dict[str, BackendRow] = {
    "cpu": BackendRow(make=CpuBackend, devices=("cpu",)),
    "cudnn": BackendRow(make=_make_cudnn, devices=("cuda",), refusal=_cudnn_refusal),
    "flashinfer": BackendRow(make=FlashInferBackend, devices=("cuda",)),
    "sdpa": BackendRow(make=SdpaBackend, reads_quantized=True),
    "triton": BackendRow(make=_make_triton, devices=("cuda",), reads_quantized=True, refusal=_triton_refusal),
    "xformers": BackendRow(make=XFormersBackend, devices=("cuda",)),
}
"""Every backend by its name."""

_PREFERRED = {
    "cpu": ("cpu", "reads pages in place with torch's flash kernel"),
    "cuda": ("triton", "kernels of our own, compiled when first used"),
}
_FALLBACK = ("sdpa", "runs on any device")
_QUANTIZED_FALLBACK = ("sdpa", "reads quantized K and V on any device")


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendChoice:
    """A backend and why it was taken.

    Attributes:
        backend: It.
        reason: Half a sentence for people.
    """

    backend: AttentionBackend
    reason: str


def choose_backend(name: str, device: torch.device | str, *, quantized_kv: bool = False) -> BackendChoice:
    """Finds the backend of a name, or the best for the device if the name is `auto`.

    Args:
        name: Of a backend, or `auto`.
        device: Where it is to run.
        quantized_kv: K and V are kept as int8 or fp8.

    Raises:
        ModelLoadError: The name is unknown, or that backend does not run on the device, or not with such K and V.
    """
    device = torch.device(device)
    kind = device.type
    if name == "auto":
        preferred, reason = _PREFERRED.get(kind, _FALLBACK)
        refusal = BACKENDS[preferred].refusal(device)
        if refusal is not None:
            preferred, reason = _FALLBACK[0], f"{_FALLBACK[1]}; not {preferred}, since {refusal}"
        if quantized_kv and not (BACKENDS[preferred].reads_quantized and cuda_status(device).has_fp8):
            preferred, reason = _QUANTIZED_FALLBACK
        backend = BACKENDS[preferred].make()
        if preferred == "triton" and not quantized_kv:
            if find_spec("flashinfer") is not None:
                backend, reason = _mixed(FlashInferBackend), f"{reason}; flashinfer's for long prompts"
            elif _cudnn_refusal(device) is None:
                backend, reason = _mixed(_make_cudnn), f"{reason}; cuDNN's for steps of many whole prompts"
        return BackendChoice(backend=backend, reason=f"best for {kind}: {reason}")
    row = BACKENDS.get(name)
    if row is None:
        raise ModelLoadError(f"attention backend {name!r} is unknown; there are auto, {', '.join(sorted(BACKENDS))}")
    if row.devices is not None and kind not in row.devices:
        raise ModelLoadError(f"attention backend {name!r} runs on {', '.join(row.devices)}, not on {kind}")
    refusal = row.refusal(device)
    if refusal is not None:
        raise ModelLoadError(f"attention backend {name!r} does not run on {device}: {refusal}")
    if quantized_kv and not row.reads_quantized:
        able = ", ".join(sorted(name for name, each in BACKENDS.items() if each.reads_quantized))
        raise ModelLoadError(f"attention backend {name!r} does not read K and V kept as int8 or fp8; there are {able}")
    return BackendChoice(backend=row.make(), reason="asked for by name")


def select_backend(name: str, device: torch.device | str, *, quantized_kv: bool = False) -> AttentionBackend:
    """Like `choose_backend`, without the reason.

    Raises:
        ModelLoadError: The name is unknown, or that backend does not run on the device, or not with such K and V.
    """
    return choose_backend(name, device, quantized_kv=quantized_kv).backend
