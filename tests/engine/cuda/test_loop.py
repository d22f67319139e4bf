"""Whole requests through the CUDA step, its kernels interpreted on a CPU: the tokens of torch's step."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import KVFormat
from engine.cuda.status import CudaStatus
from engine.request import GenerateRequest
from engine.step_choice import StepChoice
from tests.equivalence.harness import open_loop, request, run
from tests.tiny_models import write_tiny_model


def requests() -> list[GenerateRequest]:
    """Enough for decoding steps of one, two and three lanes, and for prompts beside decoding lanes."""
    return [
        request("greedy", [5, 9, 301, 44, 17, 8, 2, 90], max_tokens=5),
        request("drawn", [77], max_tokens=4, temperature=0.8, seed=3),
        request("narrowed", [4, 4, 260], max_tokens=3, temperature=1.1, top_p=0.8, top_k=30, frequency_penalty=0.4),
    ]


@pytest.mark.usefixtures("coarse_cuts")
@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_tokens_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: KVFormat) -> None:
    model = write_tiny_model(tmp_path, "qwen3", num_hidden_layers=1, max_position_embeddings=64)
    with open_loop(model, max_num_seqs=3, kv_dtype=kv) as loop:
        expected = run(loop, requests())
    monkeypatch.setattr("engine.build.warm_up", lambda *_: None)  # its prompts would be interpreted for minutes
    monkeypatch.setattr(
        "engine.resolve.choose_step", lambda *_: StepChoice(step="cuda", reason="on a CPU, interpreted")
    )
    monkeypatch.setattr("engine.cuda.status.cuda_status", lambda _: CudaStatus(True, "interpreted"))

    with open_loop(model, max_num_seqs=3, step="cuda", attention="sdpa", kv_dtype=kv) as loop:
        found = run(loop, requests())

    assert found == expected
