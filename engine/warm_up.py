"""Requests that nobody asked: they make a device compile, load and choose what the first real ones would wait for.

An accelerator's libraries do much of that when a kernel is first launched for some size. So does ours. A second of such
requests at the start is not missed; half a second in the middle of somebody's answer is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from engine.errors import ModelLoadError
from engine.loop import EngineLoop
from engine.request import EngineInfo, FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams

_NUM_TOKENS = 3
"""Output of each: its first comes with a prompt, its second from a step of nothing but decoding."""

_WAYS: Sequence[dict[str, Any]] = (
    {},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    {"temperature": 0.8, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {0: 1.0}},
    {"logprobs": 2},
)
"""How tokens are drawn."""

_SIZES = ((1, 1), (1, 20), (1, 100), (5, 100), (1, 1500), (64, 128))
"""Requests at once, and prompt tokens of each."""


def warm_up(loop: EngineLoop, max_lanes: int) -> None:
    """Runs them.

    Args:
        loop: An engine on the device that is given up afterwards, for what it counts is nobody's; its runner is not.
        max_lanes: Sequences that it runs at once.

    Raises:
        ModelLoadError: A step fails there.
    """
    for wave in warm_up_requests(loop.info, max_lanes):
        for request in wave:
            loop.submit(request)
        while loop.has_work:
            for event in loop.step():
                if event.finish_reason is FinishReason.ERROR:
                    assert event.error is not None
                    raise ModelLoadError(f"a first step on {loop.info.device} failed: {event.error.message}")


def warm_up_requests(info: EngineInfo, max_lanes: int) -> Iterator[list[GenerateRequest]]:
    """Waves of requests that an engine takes all at once.

    Args:
        info: The engine.
        max_lanes: Sequences that it runs at once.
    """
    draw = random.Random(0)
    longest = min(info.max_model_len, info.pool_tokens) - _NUM_TOKENS
    count = 0
    for num_requests, length in _SIZES:
        size = min(length, longest)
        num = max(1, min(num_requests, max_lanes, longest // (size + 2 * info.page_size)))
        if size < 1:
            return
        for way in _WAYS if num_requests in (1, 5) and length == 100 else _WAYS[:1]:
            wave = []
            for _ in range(num):
                sampling = SamplingParams(max_tokens=_NUM_TOKENS, seed=0, ignore_eos=True, **way)
                prompt = [draw.randrange(info.vocab_size) for _ in range(size)]
                wave.append(GenerateRequest(request_id=f"warm-up-{count}", prompt_ids=prompt, sampling=sampling))
                count += 1
            yield wave
