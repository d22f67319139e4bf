"""Metrics of requests and of the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine.stats import AccountCharge, EngineStats
from engine.text.model import TextModel
from gateway.settings import PROMETHEUS_VARIABLE
from gateway.telemetry import MAX_ACCOUNTS, OTHER_ACCOUNTS, Metrics
from tests.fakes import ScriptedEngine
from tests.gateway.wire import CHAT, TEXT, chat, stream, text, whole


def samples(exposed: str) -> dict[str, float]:
    """Values by name and labels, as they are written."""
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposed)
        for sample in family.samples
    }


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    return samples((await client.get("/metrics")).text)


async def test_requests_are_counted_by_route_and_status(client: httpx.AsyncClient) -> None:
    await whole(client, chat())
    await client.post(CHAT, json=chat(n=0))
    await client.get("/some/unknown/path")
    seen = await scrape(client)
    assert seen[f"wye_http_requests_total,method=POST,route={CHAT},status=200"] == 1
    assert seen[f"wye_http_requests_total,method=POST,route={CHAT},status=400"] == 1
    assert seen["wye_http_requests_total,method=GET,route=unmatched,status=404"] == 1


async def test_generations_are_measured(client: httpx.AsyncClient, model: TextModel) -> None:
    await stream(client, chat(n=2))
    await whole(client, text(prompt=["a", "b"], max_tokens=3), TEXT)
    seen = await scrape(client)
    assert seen["wye_time_to_first_token_seconds_count"] == 2
    assert seen["wye_generation_seconds_count"] == 2
    assert seen["wye_time_per_output_token_seconds_count"] == 4
    assert seen["wye_completion_tokens_count"] == 4
    assert seen["wye_finished_total,reason=stop"] == 2
    assert seen["wye_finished_total,reason=length"] == 2
    num_said = len(model.tokenizer.encode("Hello there.", add_special=False)) + 1
    assert seen["wye_completion_tokens_sum"] == 2 * num_said + 2 * 3


async def test_what_accounts_hold_is_told_of_the_largest_by_name(engine: ScriptedEngine) -> None:
    for index in range(MAX_ACCOUNTS + 5):
        engine.charges[f"t{index}"] = AccountCharge(f"t{index}", 1000, 100 + index)
    engine.charges["gone"] = AccountCharge("gone", 5000, 0)
    seen = samples(Metrics(engine).expose().decode())
    resident = {name: value for name, value in seen.items() if name.startswith("wye_kv_resident_kib")}
    assert len(resident) == MAX_ACCOUNTS + 1
    assert resident[f"wye_kv_resident_kib,account=t{MAX_ACCOUNTS + 4}"] == 100 + MAX_ACCOUNTS + 4
    assert resident[f"wye_kv_resident_kib,account={OTHER_ACCOUNTS}"] == sum(range(100, 105))
    assert seen["wye_kv_charged_kib_seconds_total"] == MAX_ACCOUNTS + 5 + 5


async def test_the_engine_speaks_for_itself(engine: ScriptedEngine) -> None:
    engine._stats = EngineStats(
        num_waiting=3,
        num_pages=100,
        num_used_pages=25,
        num_cached_pages=10,
        num_decode_tokens=7,
        num_forced_tokens=2,
        num_cached_tokens=64,
        num_prompt_tokens=128,
        num_finished={"stop": 4, "abort": 1},
        step_ms=12.5,
    )
    seen = samples(Metrics(engine).expose().decode())
    assert seen["wye_engine_up"] == 1
    assert seen["wye_engine_waiting_sequences"] == 3
    assert seen["wye_kv_usage_ratio"] == 0.25
    assert seen["wye_kv_cached_pages"] == 10
    assert seen["wye_engine_decode_tokens_total"] == 7
    assert seen["wye_engine_forced_tokens_total"] == 2
    assert seen["wye_prefix_cache_hit_tokens_total"] == 64
    assert seen["wye_prefix_cache_query_tokens_total"] == 128
    assert seen["wye_engine_finished_total,reason=stop"] == 4
    assert seen["wye_engine_step_seconds"] == 0.0125


WORKER = """
import sys
from pathlib import Path
from gateway.telemetry import MAX_ACCOUNTS, OTHER_ACCOUNTS, Metrics
from tests.fakes import ScriptedEngine, repeats, text_model
text = text_model()
metrics = Metrics(ScriptedEngine(text, repeats(1)), int(sys.argv[2]), Path(sys.argv[1]))
metrics.observe_http("POST", "/x", 200, 0.5)
metrics.observe_first_token(0.25)
metrics.set_active(3)
sys.stdout.write(metrics.expose().decode())
sys.stdout.flush()
sys.stdin.read()
"""


def test_any_worker_reports_the_sum_of_all(tmp_path: Path, model: TextModel) -> None:
    environment = {**os.environ, PROMETHEUS_VARIABLE: str(tmp_path)}
    workers = []
    for index in range(3):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(index)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        seen = worker.stdout.readline()
        workers.append(worker)
        lines = [seen]
        while "wye_engine_finished_total" not in seen:
            seen = worker.stdout.readline()
            lines.append(seen)
    last = samples("".join(lines))
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0
    assert last["wye_http_requests_total,method=POST,route=/x,status=200"] == 3
    assert last["wye_time_to_first_token_seconds_count"] == 3
    assert [last[f"wye_gateway_active_requests,worker={index}"] for index in range(3)] == [3, 3, 3]
    assert last["wye_engine_running_sequences"] == 0
