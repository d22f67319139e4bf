"""The peer: `transformers` generating with the same weights, its tokens stamped as they come."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from loadtests.driver import BatchTiming, SequenceTiming


class _Stopwatch(transformers.StoppingCriteria):  # type: ignore[misc]  # transformers is untyped here
    """Called once a step, after its tokens were chosen; never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if input_ids.is_cuda:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class TransformersPeer:
    """`transformers`' own `generate`, greedy, with a dynamic cache and SDPA attention.

    Args:
        path: Hugging Face directory or GGUF file.
        dtype: Of the weights.
        device: Where it runs.

    Raises:
        ValueError: `transformers` kept some weights in another format, so the comparison would not be one.
    """

    def __init__(self, path: Path, dtype: torch.dtype, device: str) -> None:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
        directory = path.parent if source else path
        with contextlib.redirect_stderr(io.StringIO()):  # its bar for GGUF files cannot be turned off
            self._model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **source)
        self._model.to(device).eval()
        others = {str(tensor.dtype) for tensor in self._model.parameters()} - {str(dtype)}
        if others:
            raise ValueError(f"the peer holds weights as {', '.join(sorted(others))}, not {dtype}")
        self._device = device

    def run(self, prompts: Sequence[Sequence[int]], num_output: int) -> BatchTiming:
        """Generates `num_output` greedy tokens for prompts of equal length, in one batch."""
        input_ids = torch.tensor([list(prompt) for prompt in prompts], device=self._device)
        watch = _Stopwatch()
        start = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=num_output,
                min_new_tokens=num_output,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=transformers.StoppingCriteriaList([watch]),
            )
        wall_s = time.perf_counter() - start
        assert output.shape[1] == input_ids.shape[1] + num_output == input_ids.shape[1] + len(watch.times)
        times = [at - start for at in watch.times]
        return BatchTiming(
            num_prompt_tokens=input_ids.numel(),
            sequences=[SequenceTiming(times=list(times)) for _ in prompts],
            wall_s=wall_s,
        )
