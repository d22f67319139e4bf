"""An engine whose model computes nothing, so that what is left of a step is the host's own work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from engine.kv.manager import KVManager
from engine.kv.storage import KVStorage
from engine.loop import EngineLoop, Prepared
from engine.models.config import ModelConfig
from engine.models.step import StepInputs
from engine.request import EngineInfo, GenerateRequest, GenerationDefaults, TokenEvent
from engine.runner.runner import ModelRunner, StepHandle
from engine.sampling.state import SamplerState
from engine.scheduling.batch import Batch
from engine.scheduling.scheduler import Scheduler

VOCAB = 64
PAGE_SIZE = 16
NUM_PAGES = 8192
MAX_SEQS = 256
_WEIGHTS_BYTES = 128 << 20
_ENDED_PAGES = 25
"""Of each sequence that has ended."""
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position=65536,
    norm_eps=1e-5,
    rope_theta=1e4,
)

Work = Literal["none", "sleep", "busy"]


@dataclass(frozen=True, slots=True)
class StepMark:
    """One call of the model.

    Attributes:
        rows: Lanes read out.
        start_ns, end_ns: Clock at its begin and end.
        process_ns: Processor time of the whole process at its begin.
        own_ns: Processor time of the call itself.
    """

    rows: int
    start_ns: int
    end_ns: int
    process_ns: int
    own_ns: int


class IdleModel:
    """A `StepModel` that returns the same logits every time, after pretending to work.

    Attributes:
        marks: One entry a call.
    """

    config = CONFIG

    def __init__(self, work: Work, work_ms: float) -> None:
        self._logits = torch.randn(MAX_SEQS, VOCAB, generator=torch.Generator().manual_seed(0))
        self._work = _worker(work, work_ms)
        self.marks: list[StepMark] = []

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Returns [R, V] logits."""
        rows = inputs.readout_rows.shape[0]
        process_ns, own_ns, start_ns = time.process_time_ns(), time.thread_time_ns(), time.perf_counter_ns()
        self._work()
        end_ns, own_ns = time.perf_counter_ns(), time.thread_time_ns() - own_ns
        self.marks.append(StepMark(rows, start_ns, end_ns, process_ns, own_ns))
        return self._logits[:rows]


def _worker(work: Work, work_ms: float) -> Callable[[], object]:
    """What a step does meanwhile; sleeping and reading both let other threads run Python.

    Reading sweeps the caches as the weights of a real model do, and then the host's own work costs more.
    """
    if work == "none":
        return lambda: None
    if work == "sleep":
        return lambda: time.sleep(work_ms / 1000)
    weights = np.ones(_WEIGHTS_BYTES // 8, dtype=np.uint64)
    start = time.perf_counter()
    weights.max()
    passes = work_ms / 1000 / (time.perf_counter() - start)
    whole, rest = int(passes), int((passes - int(passes)) * len(weights))

    def read() -> None:
        for _ in range(whole):
            weights.max()
        weights[: rest + 1].max()

    return read


class NotingRunner(ModelRunner):
    """The real runner; notes when each step was handed over.

    Attributes:
        submitted_ns: Clock after each call of `submit`.
    """

    submitted_ns: list[int]

    def submit(self, batch: Batch) -> StepHandle:
        """See `ModelRunner.submit`."""
        handle = super().submit(batch)
        self.submitted_ns.append(time.perf_counter_ns())
        return handle


class GatheringLoop(EngineLoop):
    """The real loop; begins once as many requests are there as are to be decoded together.

    Attributes:
        num_awaited: Requests that must still come before the first step.
    """

    num_awaited = 0

    def submit(self, request: GenerateRequest, prepared: Prepared | None = None) -> None:
        """See `EngineLoop.submit`."""
        super().submit(request, prepared)
        self.num_awaited -= 1

    def step(self) -> list[TokenEvent]:
        """See `EngineLoop.step`."""
        return [] if self.num_awaited > 0 else super().step()


@dataclass(kw_only=True, slots=True)
class IdleEngine:
    """A loop over an idle model.

    Attributes:
        model: Keeps the marks.
        runner: The real runner and sampler.
        loop: The real loop, scheduler and pool.
        width: Sequences that are decoded together; the first step waits for all of them.
        overlap: Prepare a step while another runs.
        num_pages: Pages in the pool.
        is_full: Every page holds something that has ended and may be asked for again, as after hours of serving.
    """

    model: IdleModel
    runner: NotingRunner = field(init=False)
    loop: GatheringLoop = field(init=False)
    width: int
    overlap: bool = True
    num_pages: int = NUM_PAGES
    is_full: bool = False

    def __post_init__(self) -> None:
        device = torch.device("cpu")
        storage = KVStorage(
            num_layers=1,
            num_pages=self.num_pages,
            page_size=PAGE_SIZE,
            num_kv_heads=1,
            head_dim=8,
            dtype=torch.float32,
            device=device,
        )
        state = SamplerState(num_rows=MAX_SEQS, vocab_size=VOCAB, device=device)
        kv = KVManager(num_pages=self.num_pages, page_size=PAGE_SIZE, fingerprint="idle", kv_dtype="float32")
        if self.is_full:
            _fill(kv)
        scheduler = Scheduler(
            kv,
            max_num_seqs=MAX_SEQS,
            max_batch_tokens=4096,
            max_waiting=4096,
            eos_token_ids=(),
            draw_seed=lambda: 0,
        )
        self.runner = NotingRunner(model=self.model, storage=storage, state=state, num_threads=1)
        self.runner.submitted_ns = []
        self.loop = GatheringLoop(
            info=_info(self.num_pages),
            scheduler=scheduler,
            runner=self.runner,
            overlap=self.overlap,
        )
        self.loop.num_awaited = self.width


def _fill(kv: KVManager) -> None:
    """Leaves ended sequences in all pages."""
    for number in range(-(-kv.num_pages // _ENDED_PAGES)):
        ids = [number] * (min(_ENDED_PAGES, kv.num_available) * PAGE_SIZE)
        table, _ = kv.open(kv.name(ids, salt=""), expected_tokens=len(ids))
        kv.reserve(table, 0, len(ids))
        kv.close(table, ids)


def _info(num_pages: int) -> EngineInfo:
    return EngineInfo(
        epoch="idle",
        model_path="idle",
        architecture="llama",
        fingerprint="idle",
        vocab_size=VOCAB,
        hidden_size=CONFIG.hidden_size,
        eos_token_ids=(),
        max_model_len=CONFIG.max_position,
        page_size=PAGE_SIZE,
        num_pages=num_pages,
        page_bytes=1,
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        attention_backend="none",
        defaults=GenerationDefaults(),
        num_parameters=0,
        load_s=0.0,
        step="none",
    )
