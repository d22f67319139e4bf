"""The number formats whose quality is measured, and how a step model of each is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.cuda.status import cuda_status
from engine.kv.storage import KVStorage
from engine.models.checkpoint import Checkpoint
from engine.models.decoder import load_model
from engine.models.step import StepModel
from engine.models.weights import load_weights
from engine.native.library import native_status
from engine.quantization.calibration import calibrate
from engine.quantization.formats import FORMATS as FORMATS_OF_NUMBERS
from loadtests.simulated import Numbers, SimulatedDecoder, bfloat16, fp8, int8, rotated
from loadtests.teacher import make_storage

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
REFERENCE = "torch-float32"
BASELINE = "torch-bfloat16"
"""What a server computes with unless told otherwise: what other forms cost is said against it too."""

QUANTIZED = (
    BASELINE,
    "kv-bfloat16",
    "kv-int8",
    "kv-int8-plain",
    "kv-fp8",
    "kv-fp8-plain",
    "torch-int8",
    "torch-int8-kv-int8",
    "torch-fp8",
    "torch-fp8-kv-fp8",
    "simulated-fp8-inputs",
)
"""Forms of `--forms quantized`, whose results are a file of their own."""

ON_CUDA = (
    BASELINE,
    "cuda-bfloat16",
    "cuda-kv-int8",
    "cuda-kv-fp8",
    "cuda-int8",
    "cuda-int8-kv-int8",
    "cuda-fp8",
    "cuda-fp8-kv-fp8",
)
"""Forms of `--forms cuda`: what a GPU computes, beside the reference and the baseline on the CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One implementation of the step with one format of weights.

    Attributes:
        label: For tables.
        kv_dtype: Of K and V in its storage.
        open: Loads a checkpoint into it; forms that share a loader share a model.
        device: Where it computes.
        missing: Why it cannot run here, or None.
        smooths: Keys that are kept as codes are smoothed before.
        floor: Greedy agreement with float32 that a test holds it to, on a short sample; None without a promise.
    """

    label: str
    kv_dtype: torch.dtype
    open: Callable[[Checkpoint], StepModel]
    device: torch.device = CPU
    missing: Callable[[], str | None] = lambda: None
    smooths: bool = True
    floor: float | None = None

    def make_storage(self, model: StepModel, num_tokens: int) -> KVStorage:
        """K and V for one window."""
        storage = make_storage(model.config, num_tokens, self.kv_dtype, self.device)
        if storage.format is not None and self.smooths:
            calibrate(model, storage, model.config.max_position)
        return storage


def _torch(dtype: torch.dtype) -> Callable[[Checkpoint], StepModel]:
    return lambda checkpoint: load_model(checkpoint, device=CPU, dtype=dtype)


def _quantized(name: str | None) -> Callable[[Checkpoint], StepModel]:
    """Weights in a format of one byte, or bfloat16; attention that reads K and V of any format."""
    return lambda checkpoint: load_model(
        checkpoint,
        device=CPU,
        dtype=torch.bfloat16,
        quantized=None if name is None else FORMATS_OF_NUMBERS[name],
        quantized_kv=True,
    )


_BFLOAT16, _INT8, _FP8 = _quantized(None), _quantized("int8"), _quantized("fp8")


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


def _cuda(name: str | None, *, quantized_kv: bool) -> Callable[[Checkpoint], StepModel]:
    """The CUDA step with weights in a format of one byte, or bfloat16."""

    def opened(checkpoint: Checkpoint) -> StepModel:
        from engine.cuda.caches import keep_kernels

        keep_kernels()  # before Triton is loaded
        from engine.cuda.decoder import load_cuda

        return load_cuda(
            checkpoint,
            device=CUDA,
            dtype=torch.bfloat16,
            quantized=None if name is None else FORMATS_OF_NUMBERS[name],
            quantized_kv=quantized_kv,
        )

    return opened


def _cuda_form(weights: str | None, kv: str | None) -> Form:
    label = f"cuda, {weights or 'bfloat16'} weights, {kv or 'bfloat16'} K and V"
    return Form(
        label=label,
        kv_dtype=torch.bfloat16 if kv is None else FORMATS_OF_NUMBERS[kv].dtype,
        open=_cuda(weights, quantized_kv=kv is not None),
        device=CUDA,
        missing=_cuda_missing,
    )


def _cuda_missing() -> str | None:
    status = cuda_status(CUDA)
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
    "kv-bfloat16": Form(label="torch, bfloat16 weights, K and V", kv_dtype=torch.bfloat16, open=_torch(torch.bfloat16)),
    "kv-int8": Form(label="torch, bfloat16 weights, int8 K and V", kv_dtype=torch.int8, open=_BFLOAT16, floor=0.95),
    "kv-int8-plain": Form(label="the same int8, keys not smoothed", kv_dtype=torch.int8, open=_BFLOAT16, smooths=False),
    "kv-fp8": Form(
        label="torch, bfloat16 weights, fp8 K and V", kv_dtype=torch.float8_e4m3fn, open=_BFLOAT16, floor=0.88
    ),
    "kv-fp8-plain": Form(
        label="the same fp8, keys not smoothed", kv_dtype=torch.float8_e4m3fn, open=_BFLOAT16, smooths=False
    ),
    "torch-int8": Form(label="torch, int8 weights", kv_dtype=torch.float32, open=_INT8, floor=0.88),
    "torch-int8-kv-int8": Form(label="torch, int8 weights, K and V", kv_dtype=torch.int8, open=_INT8, floor=0.88),
    "torch-fp8": Form(label="torch, fp8 weights", kv_dtype=torch.float32, open=_FP8, floor=0.78),
    "torch-fp8-kv-fp8": Form(label="torch, fp8 weights, K and V", kv_dtype=torch.float8_e4m3fn, open=_FP8, floor=0.77),
    "simulated-fp8-inputs": Form(
        label="simulated: fp8 weights, and inputs of products with a scale a row",
        kv_dtype=torch.float32,
        open=_simulated(Numbers(weights=fp8, inputs=fp8)),
    ),
    "cuda-bfloat16": _cuda_form(None, None),
    "cuda-kv-int8": _cuda_form(None, "int8"),
    "cuda-kv-fp8": _cuda_form(None, "fp8"),
    "cuda-int8": _cuda_form("int8", None),
    "cuda-int8-kv-int8": _cuda_form("int8", "int8"),
    "cuda-fp8": _cuda_form("fp8", None),
    "cuda-fp8-kv-fp8": _cuda_form("fp8", "fp8"),
}
"""By the name that `--forms` takes, in the order of the table; the reference comes first."""
