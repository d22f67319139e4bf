"""Measuring quality: windows and chunks change nothing, roundings are what they are called, and a report is whole."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import Checkpoint, open_checkpoint
from engine.models.decoder import load_model
from engine.models.weights import load_weights
from loadtests import quality
from loadtests.quality_forms import CPU, FORMS, QUANTIZED, REFERENCE
from loadtests.simulated import Numbers, SimulatedDecoder, bfloat16, int8, rotated
from loadtests.teacher import Comparison, make_storage, read_window, windows
from tests.tiny_models import FAMILIES, Family, write_tiny_model

TOKENS = [(7 * index) % 500 for index in range(50)]


def checkpoint_of(directory: Path, family: Family = "llama") -> Checkpoint:
    write_tiny_model(directory, family)
    return open_checkpoint(directory)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_simulation_that_rounds_to_bfloat16_is_near_the_decoder_and_not_it(tmp_path: Path, family: Family) -> None:
    checkpoint = checkpoint_of(tmp_path, family)
    exact = load_model(checkpoint, device=CPU, dtype=torch.float32)
    weights = load_weights(checkpoint, torch.float32, CPU)
    rounded = SimulatedDecoder(checkpoint.config, weights, Numbers(weights=bfloat16, inputs=bfloat16))
    storage = make_storage(checkpoint.config, len(TOKENS), torch.float32)
    expected = read_window(exact, storage, TOKENS, 50)
    found = read_window(rounded, storage, TOKENS, 50)
    error = (found - expected).abs().mean() / expected.std()
    assert 1e-4 < error < 0.05


def test_a_simulation_that_rounds_nothing_but_k_and_v_is_nearer_still(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path)
    storage = make_storage(checkpoint.config, len(TOKENS), torch.float32)
    expected = read_window(load_model(checkpoint, device=CPU, dtype=torch.float32), storage, TOKENS, 50)
    errors = []
    for numbers in (Numbers(weights=lambda x: x, inputs=lambda x: x), Numbers(weights=int8(32), inputs=int8(32))):
        model = SimulatedDecoder(checkpoint.config, load_weights(checkpoint, torch.float32, CPU), numbers)
        errors.append((read_window(model, storage, TOKENS, 50) - expected).abs().mean().item())
    assert 0 < errors[0] < errors[1]


@pytest.mark.parametrize("chunk", [3, 16, 49])
def test_chunks_change_nothing(tmp_path: Path, chunk: int) -> None:
    checkpoint = checkpoint_of(tmp_path)
    model = load_model(checkpoint, device=CPU, dtype=torch.float32)
    storage = make_storage(checkpoint.config, len(TOKENS), torch.float32)
    whole = read_window(model, storage, TOKENS, len(TOKENS))
    assert whole.shape == (len(TOKENS), checkpoint.config.vocab_size)
    torch.testing.assert_close(read_window(model, storage, TOKENS, chunk), whole, atol=1e-4, rtol=0)


def test_windows_hold_every_token_but_a_last_one_alone() -> None:
    assert list(windows(range(10), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(windows(range(9), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("block", [None, 8, 16])
def test_int8_blocks_are_off_by_half_a_step_at_most_and_hold_255_values(block: int | None) -> None:
    values = torch.randn(12, 64, generator=torch.Generator().manual_seed(3))
    values[2] = 0.0
    rounded = int8(block)(values)
    steps = values.view(12, -1, block or 64).abs().amax(-1, keepdim=True) / 127
    error = (rounded - values).view(12, -1, block or 64).abs()
    assert (error <= steps * 0.5001).all()
    assert (error > steps * 0.4).any()
    whole = rounded.view(12, -1, block or 64)[3:] / steps[3:]
    torch.testing.assert_close(whole, whole.round(), atol=1e-3, rtol=0)
    assert torch.equal(rounded[2], values[2])


def test_a_short_last_block_has_a_scale_of_its_own() -> None:
    values = torch.randn(5, 96, generator=torch.Generator().manual_seed(4))
    rounded = int8(64)(values)
    assert torch.equal(rounded[:, :64], int8(64)(values[:, :64]))
    assert torch.equal(rounded[:, 64:], int8(32)(values[:, 64:]))


@pytest.mark.parametrize("num_inputs", [64, 96])
def test_a_rotation_alone_changes_nothing(num_inputs: int) -> None:
    values = torch.randn(5, num_inputs, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(rotated(lambda x: x, 64)(values), values, atol=1e-5, rtol=0)
    assert not torch.allclose(rotated(lambda x: x.clamp(max=0.5), 64)(values), values, atol=1e-2)


def test_a_rotation_spares_a_block_the_coarse_scale_of_one_large_value() -> None:
    values = torch.randn(40, 64, generator=torch.Generator().manual_seed(6))
    values[:, 7] *= 40
    plain, spread = ((rounding(values) - values).square().mean() for rounding in (int8(64), rotated(int8(64), 64)))
    assert spread < plain / 3


def test_int8_scales_are_kept_in_their_format() -> None:
    values = torch.tensor([[1.0, 0.3, -0.7, 0.001]])
    scale = (torch.tensor(1.0) / 127).bfloat16().float()
    expected = torch.tensor([[127.0, 38.0, -89.0, 0.0]]) * scale
    torch.testing.assert_close(int8(4, torch.bfloat16)(values), expected, atol=0, rtol=0)


def test_a_comparison_counts_what_differs_and_by_how_much() -> None:
    reference = torch.tensor([[3.0, 2.0, 0.0], [0.0, 1.0, 0.9], [1.0, 0.0, 0.0]])
    logits = torch.tensor([[3.0, 2.0, 0.0], [0.0, 0.9, 1.0], [1.0, 0.0, 3.0]])
    found = Comparison()
    found.add([0, 1, 2], logits, reference)
    assert (found.num_positions, found.num_targets, found.num_agreeing) == (3, 2, 1)
    assert found.margins == pytest.approx([0.1, 1.0])
    assert found.losses == pytest.approx([0.1, 1.0])
    assert (found.num_near_ties(0.25), found.num_near_ties(2.0)) == (1, 2)
    assert found.greatest_error == pytest.approx(3.0)
    assert found.mean_error == pytest.approx((0.2 + 3.0) / 9)
    probabilities = logits.softmax(-1)
    assert found.perplexity == pytest.approx(math.sqrt(1 / (probabilities[0, 1] * probabilities[1, 2]).item()))
    twice = Comparison()
    twice.merge(found)
    twice.merge(found)
    assert twice.num_positions == 6
    assert twice.perplexity == pytest.approx(found.perplexity)
    assert twice.margins == found.margins * 2


def test_equal_models_agree_everywhere() -> None:
    logits = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))
    found = Comparison()
    found.add(list(range(20)), logits, logits)
    assert (found.num_agreeing, found.mean_error, found.mean_divergence) == (20, 0.0, 0.0)


def test_a_report_has_every_form_and_every_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_model(tmp_path / "model", "llama")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "one.txt").write_text("What is the capital of France? " * 6, encoding="utf-8")
    (texts / "two.txt").write_text("Paris. 1 2 3 4", encoding="utf-8")
    monkeypatch.setattr(quality, "TEXTS", texts)
    path = tmp_path / "quality.json"
    forms = ["torch-bfloat16", "simulated-int8", "kv-int8", "torch-fp8-kv-fp8"]
    options = ["--model", str(tmp_path / "model"), "--forms", *forms, "--window", "32", "--chunk", "10"]
    assert quality.main([*options, "--threads", "1", "--json", str(path)]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert list(report["forms"]) == [REFERENCE, *forms]
    for name, form in report["forms"].items():
        assert set(form["texts"]) == {"one", "two"}
        assert form["positions"] == sum(part["positions"] for part in form["texts"].values()) > 40
        assert form["perplexity"] > 1
        assert (form["mean_logit_error"] == 0) == (name == REFERENCE)
    assert [row[0] for row in report["tables"][0]["rows"]] == [FORMS[name].label for name in report["forms"]]
    assert report["forms"]["torch-bfloat16"]["greedy_agreement_with_baseline"] == 1
    assert all(0 < form["greedy_agreement_with_baseline"] <= 1 for form in report["forms"].values())
    assert len({row[0] for row in report["tables"][1]["rows"]}) == len(report["forms"])
    assert FORMS["simulated-int8"].label in capsys.readouterr().out


def test_only_the_first_tokens_of_each_text_are_read_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path / "model", "llama")
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("one", "two"):
        (texts / f"{name}.txt").write_text("What is the capital of France? " * 6, encoding="utf-8")
    monkeypatch.setattr(quality, "TEXTS", texts)
    path = tmp_path / "quality.json"
    options = ["--model", str(tmp_path / "model"), "--forms", "kv-fp8", "--tokens", "12", "--threads", "1"]
    assert quality.main([*options, "--json", str(path)]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert {form["positions"] for form in report["forms"].values()} == {24}


def test_quantized_names_all_forms_of_one_byte_a_number_and_no_other_twice() -> None:
    chosen = quality.chosen_forms(["quantized"])
    assert chosen == [REFERENCE, *QUANTIZED]
    assert {"torch-int8", "torch-fp8", "kv-int8", "kv-fp8"} < set(chosen)


def test_forms_keep_what_they_say_in_one_byte_and_smooth_keys_unless_they_do_not(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path)
    for name, smooths in (("kv-int8", True), ("kv-int8-plain", False)):
        form = FORMS[name]
        smoothing = form.make_storage(form.open(checkpoint), 16).smoothing
        assert smoothing is not None
        assert smoothing.mean.any().item() == smooths


def test_a_form_that_does_not_run_here_is_refused_by_name_and_left_out_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = replace(FORMS["torch-bfloat16"], missing=lambda: "no reason")
    monkeypatch.setattr(quality, "FORMS", {**FORMS, "torch-bfloat16": missing})
    with pytest.raises(SystemExit, match="torch-bfloat16 does not run here: no reason"):
        quality.chosen_forms(["torch-bfloat16"])
    assert "torch-bfloat16" not in quality.chosen_forms(None)
    assert "torch-bfloat16 is left out: no reason" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--window", "1"], ["--chunk", "0"], ["--threads", "0"], ["--tokens", "1"]])
def test_sizes_that_make_no_sense_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        quality.main(wrong)


def test_the_texts_are_long_enough_and_each_says_where_it_is_from() -> None:
    names = sorted(path.name for path in quality.TEXTS.glob("*.txt"))
    origins = (quality.TEXTS / "README.md").read_text(encoding="utf-8")
    assert names
    assert all(f"`{name}`" in origins for name in names)
