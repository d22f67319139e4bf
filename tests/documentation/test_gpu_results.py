"""What the pages show of the H200: every file that tells what a step takes, beside vLLM where that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs import step_chart
from docs.gpu_results import VLLM, VLLM_HTTP, measured, prompts, served
from docs.tables_gpu import NOTHING, gpu, render


def offline(shape: str, step_ms: dict[int, float], **engine: Any) -> dict[str, Any]:
    """A result file, as far as it is read."""
    described = {"dtype": "bfloat16", "step": "cuda", "attention": "triton", "start_s": 8.5, "pool_mib": 2048.0}
    return {
        "engine": {"model": f"random weights, shape {shape}", **described, **engine},
        "widths": [{"width": width, "step_ms": ms, "floor_ms": 0.25} for width, ms in step_ms.items()],
        "prefill": [{"prompts": count, "prompt_tokens": 2048, "prefill_tokens_per_s": 4e5} for count in (1, 16)],
        "memory": {"peak_gpu_mib": 3072.0},
    }


def served_run(streams: int, rate: float, ttft_ms: float | None, failed: int) -> dict[str, Any]:
    """One of the runs of a load test."""
    counts = {"concurrency": streams, "rate": None, "num_requests": 512, "num_failed": failed}
    return {**counts, "output_tokens_per_s": rate, "ttft_ms": {"p50": ttft_ms}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Of two models, one of them sampled too, of an old form, and of a server."""
    untimed = offline("llama-3.2-1b", {})
    untimed["widths"] = [{"width": 1, "decode_tokens_per_s": 30.0}]
    documents = {
        "offline-h200-llama-3.1-8b": offline("llama-3.1-8b", {1: 4.0}),
        "offline-h200-qwen3-0.6b": offline("qwen3-0.6b", {1: 0.5, 24: 1.0}),
        "offline-h200-qwen3-0.6b-sampled": offline("qwen3-0.6b", {1: 0.625}, temperature=0.8),
        "offline-h200-llama-3.2-1b": untimed,
        "offline": offline("smollm2-135m", {1: 9.0}),
        "run-h200-qwen3-0.6b": {
            "workload": {"model": "qwen3"},
            "runs": [served_run(64, 30598.0, 80.04, 0), served_run(256, 0.0, None, 512)],
        },
    }
    for stem, document in documents.items():
        (tmp_path / f"{stem}.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def test_steps_stand_beside_those_of_vllm_only_where_the_same_was_measured(results: Path) -> None:
    shown = render(measured(results), prompts(results), []).splitlines()
    assert "| Qwen3-0.6B | 1 | 0.500 | 1.628 | 3.26 | 0.250 | 50 |" in shown
    assert "| Qwen3-0.6B | 24 | 1.000 | - | - | 0.250 | 25 |" in shown
    assert "| Qwen3-0.6B, temperature 0.8 | 1 | 0.625 | - | - | 0.250 | 40 |" in shown
    assert "| Llama-3.1-8B | 1 | 4.000 | 4.948 | 1.24 | 0.250 | 6 |" in shown
    assert "| Qwen3-0.6B | 16 | 2048 | 400,000 | 391,499 | 1.02 |" in shown
    assert "| Qwen3-0.6B | 8.5 | 2.0 | 3.0 | cuda | triton |" in shown


def test_files_without_a_time_of_a_step_and_of_other_machines_are_left_out(results: Path) -> None:
    labels = [one.label for one in measured(results)]
    assert labels == ["Qwen3-0.6B", "Qwen3-0.6B, temperature 0.8", "Llama-3.1-8B"]


def test_prompts_measured_alone_are_shown_before_those_between_other_things(results: Path) -> None:
    for name, recorded in (("prompts", False), ("prompts-recorded", True)):
        document = offline("qwen3-0.6b", {}, prompt_graphs=recorded)
        document["prefill"] = [{"prompts": 1, "prompt_tokens": 128, "prefill_tokens_per_s": 1000.0 + recorded}]
        (results / f"offline-h200-qwen3-0.6b-{name}.json").write_text(json.dumps(document), encoding="utf-8")
    assert [one.label for one in prompts(results)] == ["Qwen3-0.6B", "Qwen3-0.6B, not recorded", "Llama-3.1-8B"]
    shown = render([], prompts(results), []).splitlines()
    assert "| Qwen3-0.6B | 1 | 128 | 1,001 | - | - |" in shown
    assert "| Qwen3-0.6B, not recorded | 1 | 128 | 1,000 | - | - |" in shown


def test_a_server_stands_beside_vllms(results: Path) -> None:
    assert VLLM_HTTP[64] == (15_299, 173)
    shown = render([], [], served(results)).splitlines()
    assert "| qwen3 | 64 | 0 of 512 | 30,598 | 15,299 | 2.00 | 80.0 | 173 |" in shown
    assert "| qwen3 | 256 | 512 of 512 | 0 | 11,649 | 0.00 | - | 541 |" in shown


def test_without_files_the_pages_say_so(tmp_path: Path) -> None:
    assert render(measured(tmp_path), prompts(tmp_path), served(tmp_path)) == NOTHING


def test_the_chart_has_a_line_for_each_side_and_the_floor(results: Path) -> None:
    compared = [one for one in measured(results) if one.peer]
    drawn = step_chart.draw(compared)
    texts = [element.text for element in ElementTree.fromstring(drawn).iter() if element.tag.endswith("text")]
    assert [text for text in texts if text and "ms a step" in text] == [
        "Qwen3-0.6B: ms a step",
        "Llama-3.1-8B: ms a step",
    ]
    assert {"Wye 1", "vLLM 0.26.0 1.63", "floor 0.25", "Wye 4"} <= set(texts)


def test_the_chart_is_up_to_date_and_stands_on_the_page_once_there_is_one() -> None:
    drawn = step_chart.chart()
    assert (drawn is not None) == (step_chart.PATH.name in gpu())
    if drawn is not None:
        assert step_chart.PATH.read_text(encoding="utf-8") == drawn, "run `make docs`"


def test_peers_were_measured_at_the_widths_that_the_tables_show() -> None:
    assert all(list(peer.step_ms) == [1, 8, 32, 64, 256] for peer in VLLM.values())
