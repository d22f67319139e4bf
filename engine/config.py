"""Settings of an engine: frozen, each part given only its own. `auto` is resolved once, in `engine.build`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

KVFormat = Literal["auto", "bfloat16", "float32", "int8", "fp8"]
WeightFormat = Literal["auto", "bfloat16", "float32", "int8", "fp8"]
StepName = Literal["auto", "native", "cuda", "torch"]
AttentionScores = Literal["auto", "on", "off"]
DeviceName = str
"""`auto`, `cpu`, `cuda` or `cuda:N`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KVConfig:
    """The pool of KV pages.

    Attributes:
        page_size: Tokens a page.
        num_pages: Pages in the pool; None derives it from `pool_bytes`.
        pool_bytes: Bytes for the pool; None takes a share of the device's free memory.
        prefix_cache: Keep finished prompts' pages for reuse.
        host_bytes: Bytes of host memory for leased contexts whose pages others need; 0 for none.
        dtype: Format of K and V; `auto` is bfloat16 in the native step, float32 in torch's step on a CPU, and
            elsewhere the weights' format or, with quantized weights, bfloat16. Never int8 or fp8 without being asked.
    """

    page_size: int = 16
    num_pages: int | None = None
    pool_bytes: int | None = None
    prefix_cache: bool = True
    host_bytes: int = 0
    dtype: KVFormat = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulingConfig:
    """How steps are filled.

    Attributes:
        max_num_seqs: Sequences that run at once.
        max_batch_tokens: Tokens of one step at most; None suits the device.
        max_waiting: Requests that may wait before `QueueFull`.
        overlap: Prepare step t+1 while step t runs.
    """

    max_num_seqs: int = 256
    max_batch_tokens: int | None = None
    max_waiting: int = 4096
    overlap: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """What runs beside what.

    Attributes:
        num_threads: Threads of one step on a CPU; None takes the cores this process may use.
    """

    num_threads: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSource:
    """An adapter to load with the model.

    Attributes:
        name: What clients call it; not empty.
        path: Its directory, as PEFT saves it.
    """

    name: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything one engine process is told.

    Attributes:
        model: Hugging Face directory or GGUF file, or `shape:NAME` for random weights of a known shape.
        device: Where it runs.
        weights: Format of weights in memory; `auto` is bfloat16. int8 of the native step has finer scales than
            int8 and fp8 of other steps, one for each output of a matrix (`engine.quantization`).
        step: What computes a step; `auto` is the native step on a CPU and the CUDA step on a GPU where those can, else
            torch.
        attention: Attention backend, or `auto`; the native step has its own, so naming one on a CPU asks for torch.
        attention_scores: Programs may read what rows attend to. Where the native step serves, that takes the weights
            once more, in bfloat16, from the first time on: `auto` allows it up to `resolve.MAX_EXTRA_BYTES` of them.
        max_model_len: Tokens of one sequence; None takes what the model was made for.
        seed: Draws the seeds of requests that bring none; None takes one from the system.
        check_integrity: Verify the KV bookkeeping whenever the engine falls idle (tests).
        adapters: Adapters that requests can name.
        kernel_dir: Directory for GPU kernels that are compiled on first use; None is below `WYE_HOME`.
    """

    model: str
    device: DeviceName = "auto"
    weights: WeightFormat = "auto"
    step: StepName = "auto"
    attention: str = "auto"
    attention_scores: AttentionScores = "auto"
    max_model_len: int | None = None
    seed: int | None = None
    check_integrity: bool = False
    kv: KVConfig = field(default_factory=KVConfig)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    adapters: tuple[AdapterSource, ...] = ()
    kernel_dir: str | None = None
