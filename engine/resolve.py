"""Every `auto` of an `EngineConfig`, turned into a value once and with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil
import torch

from engine.config import EngineConfig, KVFormat
from engine.container import free_memory, processor_share
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage
from engine.models.config import ModelConfig
from engine.quantization.formats import FORMATS, NumberFormat
from engine.step_choice import StepChoice, choose_step

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
KV_DTYPES = DTYPES | {name: each.dtype for name, each in FORMATS.items()}

CPU_POOL_SHARE = 0.25
"""Share of the memory free after loading that the KV pool takes on a CPU, where others live too."""

CUDA_POOL_SHARE = 0.85
"""The same on a GPU; what is left serves activations and the allocator."""

MAX_CPU_POOL_BYTES = 2 * 2**30
"""Most that a CPU pool takes unless told otherwise."""

MAX_EXTRA_BYTES = 2 * 2**30
"""Weights that are loaded a second time without being asked, see `EngineConfig.attention_scores`."""

CPU_BATCH_TOKENS = 512
"""Tokens of one step on a CPU: a chunk of prefill that keeps decoding lanes waiting for a fraction of a second."""

CUDA_BATCH_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an engine runs, in what precision, with how many threads.

    Attributes:
        device: Torch device.
        step: What computes a step, and why.
        weights: Format of the weights: `bfloat16`, `float32`, `int8` or `fp8`.
        kv_dtype: Of K and V.
        num_threads: Threads of one step on a CPU.
        max_batch_tokens: Tokens of one step.
        max_num_seqs: Sequences that run at once.
    """

    device: torch.device
    step: StepChoice
    weights: str
    kv_dtype: torch.dtype
    num_threads: int
    max_batch_tokens: int
    max_num_seqs: int

    @property
    def dtype(self) -> torch.dtype:
        """Of torch's weights; of what is not quantized of them."""
        return DTYPES.get(self.weights, torch.bfloat16)

    @property
    def quantized(self) -> NumberFormat | None:
        """Format of quantized weights in steps but the native one, which has its own; None if they are not."""
        return None if self.step.is_native else FORMATS.get(self.weights)

    @property
    def quantized_kv(self) -> bool:
        """Whether K and V are kept as int8 or fp8."""
        return self.kv_dtype not in DTYPES.values()


def place(config: EngineConfig, model: ModelConfig | None = None) -> Placement:
    """Chooses device, step and precision.

    Raises:
        ModelLoadError: What was asked for is not there or contradicts itself, or a limit makes no sense.
    """
    device = _device(config.device)
    step = choose_step(config, device, model)
    weights = "bfloat16" if config.weights == "auto" else config.weights
    kv_dtype = (
        torch.bfloat16 if step.is_native else _kv_dtype(config.kv.dtype, device, DTYPES.get(weights, torch.bfloat16))
    )
    threads = config.parallel.num_threads or usable_cores()
    tokens = config.scheduling.max_batch_tokens
    if tokens is None:
        tokens = CUDA_BATCH_TOKENS if device.type == "cuda" else CPU_BATCH_TOKENS
    seqs = config.scheduling.max_num_seqs
    if seqs < 1 or tokens < 1 or threads < 1:
        raise ModelLoadError("max_num_seqs, max_batch_tokens and num_threads must be at least 1")
    return Placement(device, step, weights, kv_dtype, threads, max(tokens, seqs), seqs)


def usable_cores() -> int:
    """Cores this process may use all the time: threads of a step wait for each other."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has affinities
        cores = os.cpu_count() or 1
    share = processor_share()
    return cores if share is None else max(min(cores, int(share)), 1)


def context_length(config: EngineConfig, model: ModelConfig) -> int:
    """Tokens of one sequence.

    Raises:
        ModelLoadError: More was asked for than the model was made for.
    """
    if config.max_model_len is None:
        return model.max_position
    if not 1 <= config.max_model_len <= model.max_position:
        raise ModelLoadError(
            f"max_model_len is {config.max_model_len}, but the model was made for at most {model.max_position} tokens"
        )
    return config.max_model_len


def pool_pages(config: EngineConfig, model: ModelConfig, placement: Placement, max_model_len: int) -> int:
    """Pages in the KV pool: as asked, or a share of the memory that is free once the weights are loaded.

    Never more than all sequences could use at full length.

    Raises:
        ModelLoadError: Not even one page fits.
    """
    kv = config.kv
    page_bytes = kv_page_bytes(config, model, placement.kv_dtype)
    if kv.num_pages is not None:
        pages = kv.num_pages
    else:
        pages = (kv.pool_bytes if kv.pool_bytes is not None else _spare_bytes(placement.device)) // page_bytes
        pages = min(pages, placement.max_num_seqs * -(-max_model_len // kv.page_size))
    if pages < 1:
        raise ModelLoadError(f"the KV pool has room for no page; one takes {page_bytes} bytes")
    return pages


def kv_page_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one KV page over all layers."""
    return KVStorage.page_bytes(
        num_layers=model.num_layers,
        page_size=config.kv.page_size,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )


def _kv_dtype(asked: KVFormat, device: torch.device, weights: torch.dtype) -> torch.dtype:
    """Of torch's step; on a CPU float32: bfloat16 K, V and attention would make logits depend on how a prompt was cut.

    With float32 there, the same tokens give the same logits to about 1e-4 whether they were computed whole, in chunks,
    beside others, or came from the cache; with bfloat16 to about 1e-2, which near ties do not survive.
    """
    if asked != "auto":
        return KV_DTYPES[asked]
    return torch.float32 if device.type == "cpu" else weights


def _spare_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_POOL_SHARE)
    free, allowed = psutil.virtual_memory().available, free_memory()
    return min(int((free if allowed is None else min(free, allowed)) * CPU_POOL_SHARE), MAX_CPU_POOL_BYTES)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelLoadError(f"device {name!r} is unknown; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ModelLoadError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelLoadError(f"device {name!r} was asked for, but torch sees no CUDA device")
        index = device.index or 0
        if index >= torch.cuda.device_count():
            raise ModelLoadError(f"device {name!r}: there are only {torch.cuda.device_count()} CUDA devices")
        return torch.device("cuda", index)
    return device
