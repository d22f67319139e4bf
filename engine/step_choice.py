"""What computes an engine's steps, and why: the native step on CPUs, the CUDA step on GPUs, or torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from engine.config import EngineConfig
from engine.cuda.status import CudaStatus, cuda_refusal, cuda_status
from engine.errors import ModelLoadError
from engine.models.config import ModelConfig
from engine.native.library import native_status
from engine.native.shape import shape_refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class StepChoice:
    """One of the three.

    Attributes:
        step: Which.
        reason: Half a sentence for people.
        form: Of the native step; None for others.
        is_fallback: Another would have been taken, had it been available.
    """

    step: Literal["native", "cuda", "torch"]
    reason: str
    form: str | None = None
    is_fallback: bool = False

    @property
    def is_native(self) -> bool:
        """Whether it is the native step."""
        return self.step == "native"

    @property
    def is_cuda(self) -> bool:
        """Whether it is the CUDA step."""
        return self.step == "cuda"


def choose_step(config: EngineConfig, device: torch.device, model: ModelConfig | None = None) -> StepChoice:
    """Takes what was asked for; without a wish the device's own step where it is available and suits the other
    settings and the model, if that is known already.

    Raises:
        ModelLoadError: What was asked for is not to be had here, or contradicts another setting.
    """
    if config.step == "torch":
        return StepChoice(step="torch", reason="asked for by name")
    if device.type == "cuda" and config.step != "native":
        return _choose_cuda(config, device, model)
    if config.step == "cuda":
        raise ModelLoadError(f"the CUDA step was asked for, but it runs on a GPU, and the device is {device}")
    wish = _wish(config)
    obstacle = _obstacle(config, device)
    if obstacle is not None:
        if wish is not None:
            raise _refusal(config, f"{wish}, but {obstacle}")
        return StepChoice(step="torch", reason=f"the native step does not suit: {obstacle}")
    status = native_status()
    if not status.available:
        if wish is not None:
            raise _refusal(config, f"{wish}, but it is not available: {status.reason}")
        return StepChoice(step="torch", reason=f"native step not available ({status.reason})", is_fallback=True)
    refusal = shape_refusal(model) if model is not None else None
    if refusal is not None:
        if wish is not None:
            raise _refusal(config, f"{wish}, but it cannot take this model: {refusal}")
        return StepChoice(step="torch", reason=f"the native step cannot take this model ({refusal})", is_fallback=True)
    return StepChoice(step="native", reason=wish or "the fastest on a CPU", form=status.form)


def _choose_cuda(config: EngineConfig, device: torch.device, model: ModelConfig | None) -> StepChoice:
    status = cuda_status(device)
    obstacle = _cuda_obstacle(config, status)
    if obstacle is not None:
        if config.step == "cuda":
            raise ModelLoadError(f"the CUDA step was asked for, but {obstacle}")
        return StepChoice(step="torch", reason=f"the CUDA step does not suit: {obstacle}")
    refusal = status.reason if not status.available else None
    if refusal is None and model is not None:
        refusal = cuda_refusal(model)
    if refusal is None:
        wish = "asked for by name" if config.step == "cuda" else "the fastest on a GPU"
        return StepChoice(step="cuda", reason=f"{wish} ({status.reason})")
    if config.step == "cuda":
        raise ModelLoadError(f"the CUDA step was asked for, but it is not available: {refusal}")
    return StepChoice(step="torch", reason=f"CUDA step not available ({refusal})", is_fallback=True)


def _cuda_obstacle(config: EngineConfig, status: CudaStatus) -> str | None:
    """The setting that only torch can follow on this GPU."""
    if config.kv.dtype == "fp8" and status.available and not status.has_fp8:
        return f"K and V in fp8 need compute capability 8.9, and this is {status.reason}"
    return None


def _refusal(config: EngineConfig, reason: str) -> ModelLoadError:
    """An error. torch's int8 weights are coarser and slower than the native ones, and not taken without being asked."""
    hint = "; with --step torch there are int8 weights of another kind" if config.step == "auto" else ""
    return ModelLoadError(reason + hint)


def _wish(config: EngineConfig) -> str | None:
    """Why torch would not do."""
    if config.step == "native":
        return "the native step was asked for"
    return "int8 weights need the native step" if config.weights == "int8" else None


def _obstacle(config: EngineConfig, device: torch.device) -> str | None:
    """The setting that only torch can follow."""
    if device.type != "cpu":
        return f"it runs on a CPU, and the device is {device}"
    if config.weights in ("float32", "fp8"):
        return f"it has weights in bfloat16 and int8, and {config.weights} was asked for"
    if config.kv.dtype not in ("auto", "bfloat16"):
        return f"its K and V are bfloat16, and {config.kv.dtype} was asked for"
    if config.attention != "auto":
        return f"it attends by itself, and attention {config.attention!r} was asked for"
    return None
