"""The search for cuts, on a tiny model whose kernels are interpreted: it times, refuses and reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cuda.kernels.attention_config import AttentionConfig
from engine.cuda.kernels.gemv_configs import GemvConfig
from engine.cuda.kernels.matmul_configs import MatmulConfig
from engine.cuda.model import CudaModel
from engine.cuda.plan import DecodePlan, make_plan
from engine.models.checkpoint import open_checkpoint
from engine.models.shapes import SHAPES
from engine.models.weights import load_weights
from loadtests import tune
from loadtests.cuts import PARTS, Cut, cut_of, neighbours, with_cut
from tests.engine.interpreting import mend_interpreter

mend_interpreter()

TINY = replace(
    SHAPES["qwen3-0.6b"],
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    max_position=64,
)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> CudaModel:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr("engine.cuda.kernels.gemv_configs._FEWEST_PROGRAMS", 1)
    checkpoint = open_checkpoint("shape:tiny")
    return CudaModel.of(checkpoint.config, load_weights(checkpoint, torch.bfloat16, torch.device("cpu")))


def make_tuner(model: CudaModel, width: int = 1) -> tune.Tuner:
    return tune.Tuner(model, width=width, context=20, replays=1, samples=1, pdl=False)


@pytest.mark.parametrize(
    ("cut", "part"),
    [
        (GemvConfig(4, 1024), "down"),
        (GemvConfig(4, 4096, programs=264), "head"),
        (MatmulConfig(64, 128), "gate_up"),
        (AttentionConfig(), "attention"),
    ],
)
def test_neighbours_differ_and_are_different(cut: Cut, part: str) -> None:
    found = list(neighbours(cut, part))
    assert len(found) == len(set(found)) >= 6
    assert cut not in found
    if part == "head":
        assert {one.block_k for one in found if isinstance(one, GemvConfig)} == {4096}
        assert any(isinstance(one, GemvConfig) and one.programs == 528 for one in found)


@pytest.mark.parametrize("width", [1, 2])
def test_one_part_is_changed_at_a_time(model: CudaModel, width: int) -> None:
    plan = make_plan(model, width, 64)
    for part in PARTS:
        cut = cut_of(plan, part)
        assert cut is not None
        changed = with_cut(plan, part, replace(cut, num_warps=2 * cut.num_warps))
        assert [one for one in PARTS if cut_of(changed, one) != cut_of(plan, one)] == [part]


def test_the_search_ends_at_a_cut_that_no_neighbour_beats(model: CudaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tuner, plan = make_tuner(model), make_plan(model, 1, 64)
    start = cut_of(plan, "down")
    assert isinstance(start, GemvConfig)
    start = replace(start, rows=2)
    timed: list[GemvConfig] = []

    def timed_ms(other: DecodePlan) -> float:
        cut = cut_of(other, "down")
        assert isinstance(cut, GemvConfig)
        timed.append(cut)
        if cut.num_warps == 8:
            raise RuntimeError("out of resources")
        return 1.0 + abs(cut.rows - 16) / 100

    monkeypatch.setattr(tuner, "step_ms", timed_ms)
    found, found_ms = tuner.climb(with_cut(plan, "down", start), "down", 1.14, float("inf"))
    best = cut_of(found, "down")
    assert isinstance(best, GemvConfig)
    assert (best.rows, found_ms) == (16, 1.0)
    assert len(timed) == len(set(timed))
    assert tuner.num_failed == sum(cut.num_warps == 8 for cut in timed) > 0


def test_a_cut_that_computes_something_else_is_refused(model: CudaModel) -> None:
    tuner, plan = make_tuner(model), make_plan(model, 1, 64)
    assert tuner.step_ms(plan) > 0
    torch.nn.init.normal_(model.weights.head)
    with pytest.raises(tune.OtherLogits):
        tuner.step_ms(plan)


@pytest.mark.parametrize("width", [1, 2])
def test_the_command_reports_what_it_found(model: CudaModel, width: int, tmp_path: Path) -> None:
    file = tmp_path / "tune.json"
    given = ["--shape", "tiny", "--device", "cpu", "--context", "20", "--replays", "1", "--samples", "1"]
    assert tune.main([*given, "--width", str(width), "--parts", "down", "--budget-s", "1", "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert [one["part"] for one in told["parts"]] == ["down"]
    assert told["after_ms"] > 0
    assert 0 < told["parts"][0]["after_ms"] <= told["parts"][0]["before_ms"]


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert tune.main(["--shape", "qwen3-0.6b"]) == 2
    assert "there is no CUDA step here" in capsys.readouterr().err
