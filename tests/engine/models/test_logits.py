"""Every family computes the logits `transformers` computes, however its tokens are cut into steps and pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.select import select_backend
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import Decoder, load_model
from tests.engine.models.harness import Lane, run_step, run_tokens, storage_for
from tests.tiny_models import LLAMA3_ROPE, Family, write_tiny_model

TOLERANCE = 1e-4
NUM_TOKENS = 90

VARIANTS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with the llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama with a linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "llama with a tied head": ("llama", {"tie_word_embeddings": True}),
    "llama with one kv head": ("llama", {"num_key_value_heads": 1}),
    "mistral with a window": ("mistral", {"sliding_window": 24}),
    "mistral with a window below a page": ("mistral", {"sliding_window": 5}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 sliding in every layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 with its own head": ("qwen3", {"tie_word_embeddings": False}),
}


@dataclass
class Case:
    model: Decoder
    token_ids: list[int]
    expected: torch.Tensor


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    from transformers import AutoModelForCausalLM

    family, overrides = VARIANTS[request.param]
    directory = write_tiny_model(tmp_path_factory.mktemp("model"), family, **overrides)
    token_ids = torch.randint(0, 512, (NUM_TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([token_ids])).logits[0]
    model = load_model(open_checkpoint(directory), device="cpu", dtype=torch.float32)
    return Case(model, token_ids, expected)


@pytest.mark.parametrize("backend", ["cpu", "sdpa"])
@pytest.mark.parametrize(
    "chunks",
    [None, [1, 15, 16, 17, 41], [50] + [1] * 40, [1] * NUM_TOKENS],
    ids=["whole", "chunked", "prefilled then decoded", "one by one"],
)
def test_logits_equal_those_of_transformers(case: Case, backend: str, chunks: list[int] | None) -> None:
    fragmented = [9, 2, 3, 7, 11, 0]
    logits = run_tokens(case.model, case.token_ids, chunks=chunks, pages=fragmented, backend=backend)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, case.expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", ["cpu", "sdpa"])
def test_lanes_of_one_step_do_not_touch_each_other(case: Case, backend: str) -> None:
    lengths = (90, 37, 64, 5)
    case.model.backend = select_backend(backend, "cpu")
    storage = storage_for(case.model.config, num_pages=48, page_size=8)
    pages = torch.randperm(48, generator=torch.Generator().manual_seed(2)).tolist()
    lanes = [
        Lane(token_ids=case.token_ids[:length], pages=pages[12 * index : 12 * (index + 1)])
        for index, length in enumerate(lengths)
    ]
    plans = ((30, 1, 40, 5), (1, 1, 20, 0), (40, 33, 1, 0), (1, 1, 1, 0), (18, 1, 2, 0))
    for rows in plans:
        run_step(case.model, storage, [(lane, n) for lane, n in zip(lanes, rows, strict=True) if n])
    for lane, length in zip(lanes, lengths, strict=True):
        assert lane.num_computed == length
        torch.testing.assert_close(torch.cat(lane.logits), case.expected[:length], atol=TOLERANCE, rtol=0)


def test_only_the_asked_rows_get_logits(tmp_path: Path) -> None:
    from engine.attention.backend import LaneLayout
    from engine.models.step import StepInputs

    model = load_model(open_checkpoint(write_tiny_model(tmp_path)), device="cpu", dtype=torch.float32)
    whole = run_tokens(model, [5, 6, 7])
    storage = storage_for(model.config)
    layout = LaneLayout(query_starts=[0, 3], context_lens=[3], block_tables=[[4]], slots=torch.arange(64, 67))
    for rows in ([2], [0, 2], []):
        logits = model.forward(
            StepInputs(
                token_ids=torch.tensor([5, 6, 7]),
                positions=torch.arange(3),
                layout=layout,
                storage=storage,
                readout_rows=torch.tensor(rows, dtype=torch.int64),
            )
        )
        torch.testing.assert_close(logits, whole[rows])


def test_bfloat16_weights_stay_close_to_float32(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, dtype=torch.bfloat16)
    token_ids = list(range(3, 60))
    exact = run_tokens(load_model(open_checkpoint(directory), device="cpu", dtype=torch.float32), token_ids)
    model = load_model(open_checkpoint(directory), device="cpu", dtype=torch.bfloat16)
    rounded = run_tokens(model, token_ids, dtype=torch.bfloat16, chunks=[30] + [1] * 27)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).abs().mean() < 0.02 * exact.std()
    assert len(torch.unique(rounded[-1])) > 500, "logits were not rounded to bfloat16"
