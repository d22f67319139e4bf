"""Measurements of the engine itself, on a tiny model: the numbers are whole, and the gateway stays out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtests import compare, offline, pool, prefix
from loadtests.driver import BatchTiming, EngineDriver, PromptSource, SequenceTiming
from tests.tiny_models import write_tiny_model

GATEWAY_PACKAGES = (
    "fastapi",
    "gateway",
    "prometheus_client",
    "pydantic",
    "rich",
    "sse_starlette",
    "starlette",
    "typer",
    "uvicorn",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory, "llama")
    return directory


def options(model: Path, json_path: Path) -> list[str]:
    return ["--model", str(model), "--pages", "256", "--threads", "1", "--rounds", "1", "--json", str(json_path)]


def test_offline_reports_every_width_and_prompt(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "offline.json"
    sizes = ["--widths", "1", "3", "--prompt", "24", "--output", "12", "--prefill", "40"]
    assert offline.main([*options(model, path), *sizes]) == 0
    report = json.loads(path.read_text(encoding="utf-8"))
    assert [row["width"] for row in report["widths"]] == [1, 3]
    assert all(row["decode_tokens_per_s"] > 0 and row["tpot_ms"] > 0 for row in report["widths"])
    assert report["prefill"][0]["prompt_tokens"] == 40
    assert report["memory"]["peak_rss_mib"] > 0
    assert report["environment"]["versions"]["torch"]
    assert report["environment"]["date"]


def test_the_engine_measures_import_nothing_of_the_gateway() -> None:
    program = f"""
import sys
import loadtests.offline, loadtests.prefix, loadtests.models
from engine.build import build_loop
print([name for name in {GATEWAY_PACKAGES!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_repeated_prompt_is_measured_as_a_cache_hit(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prefix.json"
    assert prefix.main([*options(model, path), "--prompt", "96"]) == 0
    (row,) = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert row["prompt_tokens"] == 96
    assert 64 <= row["cached_tokens"] < 96


def test_a_full_pool_leaves_little_unused_while_requests_wait(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    sizes = ["--pages", "128", "--requests", "40"]
    assert pool.main([*options(model, path), *sizes]) == 0
    (row,) = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert row["unused_median"] <= 5
    assert row["most_running"] > 8


def test_compare_runs_ours_and_transformers_on_the_same_weights(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    sizes = ["--widths", "1", "2", "--prompt", "16", "--output", "12", "--prefill", "32"]
    assert compare.main([*options(model, path), *sizes]) == 0
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert [case["case"] for case in cases] == ["decode, width 1", "decode, width 2", "prefill, 32 tokens"]
    assert all(case["ours_tokens_per_s"] > 0 and case["peer_tokens_per_s"] > 0 for case in cases)


def test_the_driver_returns_all_tokens_and_leaves_the_engine_idle(model: Path) -> None:
    driver = EngineDriver(
        offline.engine_config(offline.parser().parse_args(["--pages", "64", "--threads", "1"]), model)
    )
    batch = driver.run(PromptSource(driver.info.vocab_size).draw(3, 20), 5)
    assert [len(sequence.times) for sequence in batch.sequences] == [5, 5, 5]
    assert batch.num_prompt_tokens == 60
    assert driver.stats.num_running == driver.stats.num_waiting == driver.stats.num_used_pages == 0
    driver.close()


def timing(*sequences: Sequence[float]) -> BatchTiming:
    timings = [SequenceTiming(times=list(times)) for times in sequences]
    return BatchTiming(num_prompt_tokens=40, sequences=timings, wall_s=10.0)


def test_decoding_counts_only_while_all_sequences_decode() -> None:
    batch = timing([1, 2, 3, 4, 5], [2, 3, 4, 5, 6])
    assert batch.decode_tokens_per_s == pytest.approx(2.0)
    assert batch.prefill_tokens_per_s == pytest.approx(20.0)
    assert batch.ttft_s == pytest.approx(1.5)


def test_answers_too_short_to_overlap_have_no_decode_rate() -> None:
    assert timing([1, 2], [3, 4]).decode_tokens_per_s is None
