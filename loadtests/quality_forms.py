"""The number formats whose quality is measured, and how a step model of each is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.models.checkpoint import Checkpoint
from engine.models.decoder import load_model
from engine.models.step import StepModel
from engine.models.weights import load_weights
from engine.native.library import native_status
from loadtests.simulated import Numbers, SimulatedDecoder, bfloat16, int8, rotated

CPU = torch.device("cpu")
REFERENCE = "torch-float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One implementation of the step with one format of weights.

    Attributes:
        label: For tables.
        kv_dtype: Of K and V in its storage.
        open: Loads a checkpoint into it.
        missing: Why it cannot run here, or None.
    """

    label: str
    kv_dtype: torch.dtype
    open: Callable[[Checkpoint], StepModel]
    missing: Callable[[], str | None] = lambda: None


def _torch(dtype: torch.dtype) -> Callable[[Checkpoint], StepModel]:
    return lambda checkpoint: load_model(checkpoint, device=CPU, dtype=dtype)


def _q8_0() -> Numbers:
    """What llama.cpp calls Q8_0."""
    rounding = int8(32, torch.float16)
    return Numbers(weights=rounding, inputs=rounding, embedding=rounding)


def _native(*, int8: bool) -> Callable[[Checkpoint], StepModel]:
    def opened(checkpoint: Checkpoint) -> StepModel:
        from engine.native.decoder import load_native  # only where its module is known to load

        return load_native(checkpoint, num_threads=torch.get_num_threads(), int8=int8)

    return opened


def _native_missing() -> str | None:
    status = native_status()
    return None if status.available else status.reason


def _simulated(numbers: Numbers) -> Callable[[Checkpoint], StepModel]:
    def opened(checkpoint: Checkpoint) -> StepModel:
        return SimulatedDecoder(checkpoint.config, load_weights(checkpoint, torch.float32, CPU), numbers)

    return opened


FORMS: Mapping[str, Form] = {
    REFERENCE: Form(label="torch, float32", kv_dtype=torch.float32, open=_torch(torch.float32)),
    "torch-bfloat16": Form(label="torch, bfloat16 weights", kv_dtype=torch.float32, open=_torch(torch.bfloat16)),
    "native-bfloat16": Form(
        label="native, bfloat16 weights",
        kv_dtype=torch.bfloat16,
        open=_native(int8=False),
        missing=_native_missing,
    ),
    "native-int8": Form(
        label="native, int8 weights",
        kv_dtype=torch.bfloat16,
        open=_native(int8=True),
        missing=_native_missing,
    ),
    "simulated-int8": Form(
        label="simulated: int8 as the native step has it, a scale per 64, blocks rotated",
        kv_dtype=torch.float32,
        open=_simulated(Numbers(weights=rotated(int8(64, torch.bfloat16), 64), inputs=rotated(int8(64), 64))),
    ),
    "simulated-int8-plain": Form(
        label="simulated: the same without rotation",
        kv_dtype=torch.float32,
        open=_simulated(Numbers(weights=int8(64, torch.bfloat16), inputs=int8(64))),
    ),
    "simulated-q8_0": Form(
        label="simulated: Q8_0 class, int8 weights and inputs, a float16 scale per 32",
        kv_dtype=torch.float32,
        open=_simulated(_q8_0()),
    ),
    "simulated-w8a16": Form(
        label="simulated: int8 weights, a scale per row, bfloat16 inputs",
        kv_dtype=torch.float32,
        open=_simulated(Numbers(weights=int8(None), inputs=bfloat16)),
    ),
}
"""By the name that `--forms` takes, in the order of the table; the reference comes first."""
