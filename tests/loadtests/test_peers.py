"""The comparison as a command: a tiny model of ours beside stand-ins for the peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests import peers
from loadtests.contest import Shape
from loadtests.peers_field import llama_kinds, pairings
from loadtests.targets import DECODE_CONTEXT
from tests.loadtests.fake_peers import (
    DECODE_RATE,
    GIGABYTES_PER_S,
    PREFILL_RATE,
    write_compiler,
    write_llama,
    write_openvino,
)
from tests.tiny_models import write_tiny_gguf, write_tiny_model

DECODE = Shape(phase="decode", width=1, num_prompt=128, num_output=64)
PREFILL = Shape(phase="prefill", width=1, num_prompt=512, num_output=1)
SIZES = ["--widths", "1", "2", "--prompt", "16", "--output", "12", "--prefill", "32", "--rounds", "2"]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for a run that measures nobody real but our own engine."""
    monkeypatch.setenv("WYE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CC", str(write_compiler(tmp_path / "compiler")))
    model = write_tiny_gguf(tmp_path / "tiny.Q4_1.gguf", write_tiny_model(tmp_path / "model"))
    programs = write_llama(tmp_path / "programs")
    fixed = ["--llama", str(programs), "--formats", "bfloat16", "--threads", "1", "--pages", "64"]
    return ["--model", str(model), *fixed, *SIZES]


def run(arguments: list[str], path: Path) -> dict[str, Any]:
    assert peers.main([*arguments, "--json", str(path)]) == 0
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def test_every_shape_is_measured_against_every_peer(arguments: list[str], tmp_path: Path) -> None:
    python = write_openvino(tmp_path / "python")
    document = run([*arguments, "--openvino", str(python)], tmp_path / "peers.json")
    pairs = [(row["case"], row["ours"], row["peer"]) for row in document["comparisons"]]
    assert pairs == [
        ("decode, width 1", "Wye bfloat16", "llama.cpp BF16"),
        ("decode, width 1", "Wye bfloat16", "OpenVINO F16"),
        ("decode, width 2", "Wye bfloat16", "llama.cpp BF16"),
        ("decode, width 2", "Wye bfloat16", "OpenVINO F16"),
        ("prefill, 32 tokens", "Wye bfloat16", "llama.cpp Q4_1"),
        ("prefill, 32 tokens", "Wye bfloat16", "OpenVINO F16"),
    ]
    peer_rates = [row["peer_tokens_per_s"] for row in document["comparisons"]]
    expected = [DECODE_RATE, 10.0, 2 * DECODE_RATE, 20.0, PREFILL_RATE, 320.0]
    assert peer_rates == pytest.approx(expected)
    for row in document["comparisons"]:
        assert row["ours_tokens_per_s"] > 0
        assert row["ratio"] > 0
    assert document["peers"] == {"llama.cpp": "programs", "openvino": "fake"}
    assert [len(rounds) for rates in document["rates"].values() for rounds in rates.values()] == [2] * 9


def test_a_row_says_what_was_asked_of_it(arguments: list[str], tmp_path: Path) -> None:
    long = ["--widths", "1", "--prompt", str(DECODE_CONTEXT), "--prefill", "--rounds", "1"]
    (row,) = run([*arguments, *long], tmp_path / "peers.json")["comparisons"]
    assert (row["asked_ratio"], row["aim_tokens_per_s"]) == (1.7, 95)


def test_the_table_says_that_openvino_is_missing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "find_python", lambda _: None)
    document = run(arguments, tmp_path / "peers.json")
    assert document["peers"]["openvino"] is None
    assert "OpenVINO GenAI (not installed: left out)" in capsys.readouterr().out


def test_the_limit_is_measured_in_the_same_rounds(arguments: list[str], tmp_path: Path) -> None:
    document = run(arguments, tmp_path / "peers.json")
    assert document["memory_gb_per_s"] == {"bfloat16": [GIGABYTES_PER_S, GIGABYTES_PER_S]}
    first = document["limits"][0]
    assert first["floor_ms"] == pytest.approx(first["bytes_per_step"] / GIGABYTES_PER_S / 1e6)
    assert first["share_of_floor"] == pytest.approx(first["floor_ms"] / first["step_ms"])
    assert [row["case"] for row in document["limits"]] == ["decode, width 1", "decode, width 2"]


def test_a_model_that_llama_cannot_read_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments[1] = str(tmp_path / "model")
    assert peers.main(arguments) == 1
    assert "llama.cpp needs a GGUF file" in capsys.readouterr().err


def test_a_directory_without_llama_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "programs" / "llama-bench").unlink()
    assert peers.main(arguments) == 1
    assert "has no llama-bench" in capsys.readouterr().err


def test_int8_is_held_against_both_quantised_formats() -> None:
    kinds = [pair.kind for pair in pairings(DECODE, ["bfloat16", "int8"], openvino=True)]
    assert kinds == ["BF16", "F16", "Q8_0", "Q4_1", "Q8_0"]
    assert [pair.peer for pair in pairings(PREFILL, ["int8"], openvino=False)] == ["llama.cpp Q4_1"]


def test_only_formats_that_are_compared_are_made() -> None:
    assert llama_kinds(["bfloat16"]) == ["BF16", "Q4_1"]
    assert llama_kinds(["bfloat16", "int8"]) == ["BF16", "Q8_0", "Q4_1"]


def test_the_comparison_says_that_weights_were_random(arguments: list[str], tmp_path: Path) -> None:
    short = ["--random-weights", "--widths", "1", "--prefill", "--rounds", "1"]
    document = run([*arguments, *short], tmp_path / "peers.json")
    assert document["random_weights"] is True
    assert document["tables"][0]["title"].startswith("random weights in the shape of tiny.Q4_1, step ")
    assert list(document["steps"]) == ["bfloat16"]
    assert document["comparisons"][0]["ours_tokens_per_s"] > 0
