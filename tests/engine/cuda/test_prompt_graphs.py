"""Steps with prompts that are filled up and recorded give what steps as they come give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.cudnn import CudnnBackend
from engine.attention.cudnn_library import attend_by_torch
from engine.attention.fresh import Cuts
from engine.attention.triton import TritonBackend
from engine.cuda import prompt_graphs, recordings
from engine.cuda.decoder import CudaDecoder
from engine.cuda.model import CudaModel
from engine.cuda.prompt_graphs import PromptGraphs
from engine.cuda.recordings import is_wanted
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage
from engine.models.checkpoint import open_checkpoint
from engine.models.weights import load_weights
from engine.quantization.formats import FORMATS
from tests.engine.models.harness import Lane, run_step, storage_for
from tests.tiny_models import Family, write_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
"""Rows that are nobody's hold whatever lay in their memory."""

PAGES = ([5, 2, 9], [0, 7, 3], [1, 4, 8])
"""Of three lanes; the storage has two pages more, of which nothing may be written."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded at once, for few tokens and lanes: all that is filled up is interpreted too."""
    monkeypatch.setattr(recordings, "FIRST_USES", 1)
    monkeypatch.setattr(prompt_graphs, "SIZES", (2, 24))
    monkeypatch.setattr(prompt_graphs, "READS", (90,))
    monkeypatch.setattr(prompt_graphs, "ROOMS", ({2: 2, 3: 2}, {1: 4, 2: 2, 3: 2}))


def make_decoder(tmp_path: Path, device: torch.device, family: Family, **overrides: Any) -> CudaDecoder:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, family, num_hidden_layers=1, **overrides))
    weights = load_weights(checkpoint, torch.float32, device)
    return CudaDecoder(CudaModel.of(checkpoint.config, weights), TritonBackend())


def lanes_of() -> list[Lane]:
    draw = torch.Generator().manual_seed(2)
    return [Lane(token_ids=torch.randint(0, 512, (45,), generator=draw).tolist(), pages=pages) for pages in PAGES]


def make_storage(decoder: CudaDecoder, dtype: torch.dtype, device: torch.device) -> KVStorage:
    if dtype == torch.float32:
        return storage_for(decoder.config, num_pages=11, device=device)
    config = decoder.config
    return KVStorage(
        num_layers=1,
        num_pages=11,
        page_size=16,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=device,
        read_dtype=torch.float32,
    )


def run_steps(decoder: CudaDecoder, storage: KVStorage) -> torch.Tensor:
    """Prompts, chunks beside decoding lanes, a few tokens, single ones; each kind twice."""
    lanes = lanes_of()
    for work in (
        [(0, 20)],
        [(1, 18)],
        [(0, 1), (1, 2), (2, 19)],
        [(1, 1), (0, 3), (2, 17)],
        [(0, 1), (1, 1)],
        [(2, 1), (1, 1)],
    ):
        run_step(decoder, storage, [(lanes[at], count) for at, count in work])
        graphs = getattr(decoder.recorded, "__self__", None)
        if graphs is not None:
            graphs.rest()
    return torch.cat([torch.cat(lane.logits) for lane in lanes])


@pytest.mark.parametrize(
    ("family", "kind", "overrides"),
    [
        ("qwen3", "float32", {}),
        ("mistral", "float32", {"sliding_window": 9}),
        ("llama", "int8", {}),
    ],
)
def test_a_step_that_is_filled_up_gives_what_it_gives_alone(
    device: torch.device, tmp_path: Path, family: Family, kind: str, overrides: dict[str, Any]
) -> None:
    decoder = make_decoder(tmp_path, device, family, **overrides)
    dtype = FORMATS[kind].dtype if kind in FORMATS else torch.float32
    theirs, ours = (make_storage(decoder, dtype, device) for _ in range(2))
    expected = run_steps(decoder, theirs)
    graphs = PromptGraphs(decoder, ours)
    decoder.recorded = graphs.forward
    taken = []
    run = prompt_graphs._Recorded.run

    def note(recorded: Any, inputs: Any) -> torch.Tensor | None:
        taken.append(len(inputs.token_ids))
        logits = run(recorded, inputs)
        return None if logits is None else logits.clone()  # the next step writes over them

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_graphs._Recorded, "run", note)
        found = run_steps(decoder, ours)

    assert taken == [18, 21, 2]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for own, their in zip(ours.paged, theirs.paged, strict=True):
        torch.testing.assert_close(own.float(), their.float(), rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1)


def test_whole_prompts_of_one_length_are_recorded_as_a_batch(device: torch.device, tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path, device, "qwen3")
    decoder.backend = CudnnBackend(TritonBackend(), Cuts(sizes=(16,)), attend_by_torch, wanted=1)
    storage, other = (storage_for(decoder.config, num_pages=11, device=device) for _ in range(2))
    graphs = PromptGraphs(decoder, storage)
    answered = []

    def note(inputs: Any) -> torch.Tensor | None:
        logits = graphs.forward(inputs) if inputs.storage is storage else None
        if inputs.storage is storage:
            answered.append(logits is not None)
        return None if logits is None else logits.clone()

    decoder.recorded = note
    for first in (0, 40, 90):
        found, expected = (
            [Lane(token_ids=list(range(first + at, first + at + 16)), pages=[at * 2 + first % 3]) for at in (0, 1)]
            for _ in range(2)
        )
        run_step(decoder, storage, [(lane, 16) for lane in found])
        run_step(decoder, other, [(lane, 16) for lane in expected])
        graphs.rest()
        for lane, same in zip(found, expected, strict=True):
            torch.testing.assert_close(lane.logits[-1], same.logits[-1], rtol=1e-4, atol=1e-4)
    assert answered == [False, True, True]
    for own, their in zip(storage.paged, other.paged, strict=True):
        torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-4)


def test_the_commonest_kinds_are_recorded_ahead(device: torch.device, tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path, device, "llama")
    storage, other = (storage_for(decoder.config, num_pages=11, device=device) for _ in range(2))
    graphs = PromptGraphs(decoder, storage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt_graphs, "FIRST_SIZES", (2, 24))
        patch.setattr(prompt_graphs, "FIRST_ROOMS", ((90, 0), (90, 1)))
        graphs.record(most_tokens=4)
    assert [(kind.num_tokens, kind.room) for kind in graphs._graphs] == [(2, 0), (2, 1)]
    lanes, others = ([Lane(token_ids=[4, 5], pages=[7])] for _ in range(2))
    run_step(decoder, other, [(lane, 2) for lane in others])
    answered = []

    def note(inputs: Any) -> torch.Tensor | None:
        logits = graphs.forward(inputs)
        answered.append(logits is not None)
        return logits

    decoder.recorded = note
    run_step(decoder, storage, [(lane, 2) for lane in lanes])
    assert answered == [True]
    torch.testing.assert_close(lanes[0].logits[0], others[0].logits[0], rtol=1e-4, atol=1e-4)


def test_steps_that_do_not_fit_are_computed_as_they_come(device: torch.device, tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path, device, "llama")
    storage, other = (storage_for(decoder.config, num_pages=11, device=device) for _ in range(2))
    graphs = PromptGraphs(decoder, storage)
    decoder.recorded = graphs.forward
    lane = Lane(token_ids=list(range(90)), pages=[0, 1, 2, 3, 4, 5])
    run_step(decoder, storage, [(lane, 85)])
    run_step(decoder, other, [(Lane(token_ids=[4, 5], pages=[7]), 2)])
    graphs.rest()
    assert not graphs._graphs
    many = [Lane(token_ids=[4], pages=[at]) for at in range(9)]
    run_step(decoder, storage, [(one, 1) for one in many])
    graphs.rest()
    assert not graphs._graphs


def test_the_variable_says_whether_they_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(recordings.PROMPTS_VARIABLE, raising=False)
    monkeypatch.delenv(recordings.PROGRAMS_VARIABLE, raising=False)
    assert is_wanted(recordings.PROMPTS_VARIABLE)
    assert is_wanted(recordings.PROGRAMS_VARIABLE)
    monkeypatch.setenv(recordings.PROMPTS_VARIABLE, "0")
    assert not is_wanted(recordings.PROMPTS_VARIABLE)
    monkeypatch.setenv(recordings.PROMPTS_VARIABLE, "yes")
    with pytest.raises(ModelLoadError, match="WYE_PROMPT_GRAPHS is 'yes'; it must be 0 or 1"):
        is_wanted(recordings.PROMPTS_VARIABLE)
