"""The H200's results beside vLLM's, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docs.gpu_results import VLLM_HTTP, Measured, measured, prompts, served
from docs.markdown import table

NOTHING = "Nothing was measured yet."


def gpu() -> str:
    """Chart and tables."""
    return render(measured(), prompts(), served())


def render(offline: Sequence[Measured], alone: Sequence[Measured], runs: Sequence[Mapping[str, Any]]) -> str:
    """The section's generated part.

    Args:
        offline: Of the engine alone.
        alone: Of prompts.
        runs: Of a server over HTTP.
    """
    parts = []
    if offline:
        parts.append("![Time of a step over its width](steps.svg)")
        parts += _titled("A decoding step, ms", _step_table(offline))
    if alone:
        parts += _titled("Prompts", _prompt_table(alone))
    if offline:
        parts += _titled("Start and memory", _start_table(offline))
    if runs:
        parts += _titled("Over HTTP", _http_table(runs))
    return "\n\n".join(parts) or NOTHING


def _titled(title: str, shown: str) -> list[str]:
    return [f"**{title}**", shown]


def _step_table(offline: Iterable[Measured]) -> str:
    headers = ["model", "width", "Wye", "vLLM 0.26.0", "times as fast", "floor", "floor / Wye, %"]
    rows = []
    for one in offline:
        for row in one.widths:
            peer = one.peer.step_ms.get(row["width"]) if one.peer else None
            ours, floor = row["step_ms"], row.get("floor_ms")
            rows.append(
                [
                    one.label,
                    str(row["width"]),
                    _ms(ours),
                    _ms(peer),
                    _ratio(peer and peer / ours),
                    _ms(floor),
                    f"{100 * floor / ours:.0f}" if floor else "-",
                ]
            )
    return table(headers, rows)


def _prompt_table(offline: Iterable[Measured]) -> str:
    headers = ["model", "prompts at once", "tokens of each", "Wye, tokens/s", "vLLM 0.26.0, tokens/s", "times as fast"]
    rows = []
    for one in offline:
        for row in one.document["prefill"]:
            size = row.get("prompts", 1), row["prompt_tokens"]
            peer = one.peer.prefill_tokens_per_s.get(size) if one.peer else None
            ours = row["prefill_tokens_per_s"]
            rows.append([one.label, *map(str, size), _count(ours), _count(peer), _ratio(peer and ours / peer)])
    return table(headers, rows)


def _start_table(offline: Iterable[Measured]) -> str:
    headers = ["model", "start, s", "KV pool, GiB", "peak GPU memory, GiB", "step", "attention"]
    rows = []
    for one in offline:
        engine, memory = one.document["engine"], one.document["memory"]
        rows.append(
            [
                one.label,
                f"{engine['start_s']:.1f}",
                _gib(engine["pool_mib"]),
                _gib(memory["peak_gpu_mib"]),
                engine["step"],
                engine["attention"],
            ]
        )
    return table(headers, rows)


def _http_table(runs: Iterable[Mapping[str, Any]]) -> str:
    headers = [
        *("model", "streams", "failed", "Wye, tokens/s", "vLLM 0.26.0, tokens/s", "times as many"),
        *("TTFT p50, ms", "vLLM's"),
    ]
    rows = []
    for document in runs:
        for run in document["runs"]:
            peer, waited = VLLM_HTTP.get(run["concurrency"] or 0, (None, None))
            ours, ttft_ms = run["output_tokens_per_s"], run["ttft_ms"]["p50"]
            rows.append(
                [
                    document["workload"]["model"],
                    str(run["concurrency"] or f"{run['rate']:g}/s"),
                    f"{run['num_failed']} of {run['num_requests']}",
                    _count(ours),
                    _count(peer),
                    _ratio(peer and ours / peer),
                    "-" if ttft_ms is None else f"{ttft_ms:.1f}",
                    "-" if waited is None else f"{waited:g}",
                ]
            )
    return table(headers, rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.2f}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _gib(mib: float | None) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}"
