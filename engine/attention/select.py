"""Chooses the attention backend by name, or by device, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.cpu import CpuBackend
from engine.attention.flashinfer import FlashInferBackend
from engine.attention.sdpa import SdpaBackend
from engine.attention.xformers import XFormersBackend
from engine.errors import ModelLoadError


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendRow:
    """One backend that can be chosen.

    Attributes:
        make: Builds it.
        devices: Device types it runs on; None means any.
    """

    make: Callable[[], AttentionBackend]
    devices: tuple[str, ...] | None = None


BACKENDS: dict[str, BackendRow] = {
    "cpu": BackendRow(make=CpuBackend, devices=("cpu",)),
    "flashinfer": BackendRow(make=FlashInferBackend, devices=("cuda",)),
    "sdpa": BackendRow(make=SdpaBackend),
    "xformers": BackendRow(make=XFormersBackend, devices=("cuda",)),
}
"""Every backend by its name."""

_PREFERRED = {"cpu": ("cpu", "reads pages in place with torch's flash kernel")}
_FALLBACK = ("sdpa", "runs on any device")


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendChoice:
    """A backend and why it was taken.

    Attributes:
        backend: It.
        reason: Half a sentence for people.
    """

    backend: AttentionBackend
    reason: str


def choose_backend(name: str, device: torch.device | str) -> BackendChoice:
    """Finds the backend of a name, or the best for the device if the name is `auto`.

    Raises:
        ModelLoadError: The name is unknown, or that backend does not run on the device.
    """
    kind = torch.device(device).type
    if name == "auto":
        preferred, reason = _PREFERRED.get(kind, _FALLBACK)
        return BackendChoice(backend=BACKENDS[preferred].make(), reason=f"best for {kind}: {reason}")
    row = BACKENDS.get(name)
    if row is None:
        raise ModelLoadError(f"attention backend {name!r} is unknown; there are auto, {', '.join(sorted(BACKENDS))}")
    if row.devices is not None and kind not in row.devices:
        raise ModelLoadError(f"attention backend {name!r} runs on {', '.join(row.devices)}, not on {kind}")
    return BackendChoice(backend=row.make(), reason="asked for by name")


def select_backend(name: str, device: torch.device | str) -> AttentionBackend:
    """Like `choose_backend`, without the reason.

    Raises:
        ModelLoadError: The name is unknown, or that backend does not run on the device.
    """
    return choose_backend(name, device).backend
