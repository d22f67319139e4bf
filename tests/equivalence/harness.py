"""Runs requests through a whole engine on a tiny model, one way or another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from engine.build import build_loop
from engine.config import (
    AdapterSource,
    EngineConfig,
    KVConfig,
    KVFormat,
    ParallelConfig,
    SchedulingConfig,
    WeightFormat,
)
from engine.loop import EngineLoop
from engine.native.library import native_status
from engine.request import GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams

Outputs = dict[tuple[str, int], list[int]]

ScoredOutputs = dict[tuple[str, int], list[tuple[int, float]]]
"""Tokens with their log-probabilities."""

Step = Literal["torch", "native", "int8", "cuda"]
"""What computes: torch in float32, the native step in bfloat16 or with int8 weights, or the CUDA step in float32."""

_FORMATS: dict[Step, WeightFormat] = {"torch": "float32", "native": "bfloat16", "int8": "int8", "cuda": "float32"}

needs_native = pytest.mark.skipif(not native_status().available, reason=f"no native step: {native_status().reason}")

NATIVE_STEPS = [pytest.param("native", marks=needs_native), pytest.param("int8", marks=needs_native)]

STEPS = [pytest.param("torch"), *NATIVE_STEPS]


@contextmanager
def open_loop(
    model: Path,
    *,
    num_pages: int = 256,
    page_size: int = 16,
    prefix_cache: bool = True,
    max_batch_tokens: int = 512,
    max_num_seqs: int = 16,
    overlap: bool = True,
    attention: str = "auto",
    step: Step = "torch",
    weights: WeightFormat | None = None,
    device: str = "cpu",
    num_threads: int = 1,
    adapters: Sequence[AdapterSource] = (),
    kv_dtype: KVFormat = "auto",
) -> Iterator[EngineLoop]:
    """An engine, on a CPU with one thread, closed afterwards with its books checked; `weights` is up to the step."""
    loop = build_loop(
        EngineConfig(
            model=str(model),
            device=device,
            weights=weights or _FORMATS[step],
            step="native" if step == "int8" else step,
            attention=attention,
            seed=0,
            check_integrity=True,
            kv=KVConfig(dtype=kv_dtype, num_pages=num_pages, page_size=page_size, prefix_cache=prefix_cache),
            scheduling=SchedulingConfig(max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens, overlap=overlap),
            parallel=ParallelConfig(num_threads=num_threads),
            adapters=tuple(adapters),
        )
    )
    assert loop.info.step.split()[0] == ("native" if step == "int8" else step)
    try:
        yield loop
        loop.check_integrity()
    finally:
        loop.close()


def request(
    name: str,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int = 24,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 5,
    top_p: float = 1.0,
    top_k: int = 0,
    ignore_eos: bool = True,
    frequency_penalty: float = 0.0,
    logprobs: int | None = None,
    adapter: str = "",
) -> GenerateRequest:
    """A request over token ids."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        top_p=top_p,
        top_k=top_k,
        ignore_eos=ignore_eos,
        frequency_penalty=frequency_penalty,
        logprobs=logprobs,
    )
    return GenerateRequest(request_id=name, prompt_ids=list(prompt_ids), sampling=params, n=n, adapter=adapter)


def run(loop: EngineLoop, requests: Sequence[GenerateRequest]) -> Outputs:
    """Submits all at once and steps until they have ended."""
    return collect(run_events(loop, requests))


def run_scored(loop: EngineLoop, requests: Sequence[GenerateRequest]) -> ScoredOutputs:
    """The same for requests that ask for log-probabilities."""
    return collect_scored(run_events(loop, requests))


def run_events(loop: EngineLoop, requests: Sequence[GenerateRequest]) -> list[TokenEvent]:
    """Submits all at once and returns everything that is told until they have ended."""
    events: list[TokenEvent] = []
    for each in requests:
        loop.submit(each)
    while loop.has_work:
        events += loop.step()
    return events


def collect(events: Sequence[TokenEvent]) -> Outputs:
    """Tokens by request and index."""
    outputs: Outputs = {}
    for event in events:
        assert event.error is None
        outputs.setdefault((event.request_id, event.index), []).extend(event.token_ids)
    return outputs


def collect_scored(events: Sequence[TokenEvent]) -> ScoredOutputs:
    """Tokens and log-probabilities by request and index."""
    outputs: ScoredOutputs = {}
    for event in events:
        assert event.error is None
        scored = zip(event.token_ids, (each.logprob for each in event.logprobs), strict=True)
        outputs.setdefault((event.request_id, event.index), []).extend(scored)
    return outputs
