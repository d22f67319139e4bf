"""Runs requests through a whole engine on a tiny model, one way or another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
from engine.loop import EngineLoop
from engine.request import GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams

Outputs = dict[tuple[str, int], list[int]]


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
    weights: str = "float32",
    device: str = "cpu",
) -> Iterator[EngineLoop]:
    """An engine, on a CPU with one thread, closed afterwards with its books checked."""
    loop = build_loop(
        EngineConfig(
            model=str(model),
            device=device,
            weights="bfloat16" if weights == "bfloat16" else "float32",
            attention=attention,
            seed=0,
            check_integrity=True,
            kv=KVConfig(num_pages=num_pages, page_size=page_size, prefix_cache=prefix_cache),
            scheduling=SchedulingConfig(max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens, overlap=overlap),
            parallel=ParallelConfig(num_threads=1),
        )
    )
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
    )
    return GenerateRequest(request_id=name, prompt_ids=list(prompt_ids), sampling=params, n=n)


def run(loop: EngineLoop, requests: Sequence[GenerateRequest]) -> Outputs:
    """Submits all at once and steps until they have ended."""
    events: list[TokenEvent] = []
    for each in requests:
        loop.submit(each)
    while loop.has_work:
        events += loop.step()
    return collect(events)


def collect(events: Sequence[TokenEvent]) -> Outputs:
    """Tokens by request and index."""
    outputs: Outputs = {}
    for event in events:
        assert event.error is None
        outputs.setdefault((event.request_id, event.index), []).extend(event.token_ids)
    return outputs
