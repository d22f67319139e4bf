"""The measured results that lie in loadtests/results, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.markdown import table
from docs.pages import ROOT

RESULTS = ROOT / "loadtests" / "results"

HEADINGS: Mapping[str, str] = {
    "peers": "Beside llama.cpp and OpenVINO GenAI",
    "peers_http": "Beside llama-server, over HTTP",
    "compare": "Beside `transformers`",
    "busy": "Beside a busy process, and left alone",
    "constrained": "Within a form",
    "speculation": "Guessing ahead",
    "gateway_cost": "What a streamed token costs a gateway",
    "prefix": "The prefix cache",
    "pool": "The KV pool when it is full",
    "economy": "What is kept, and what gives way",
    "http_overhead": "What HTTP adds",
    "idle_streams": "Idle streams",
    "quota": "What tenants cost",
    "neighbours": "A chat beside a crowd",
    "programs": "Programs beside plain completions",
    "agents": "Agents as clients and as programs",
    "run": "Under load",
    "offline": "The engine alone",
    "step_profile": "Where the time of a step goes",
    "start": "From the command to ready",
    "memory": "Memory beside the KV pool",
}
"""Names of result files up to a hyphen (`offline-h200.json` is an `offline`), with headings, in the order shown."""


CHARTS: Mapping[str, str] = {
    "agents": "![Completed runs per second](agents.svg)",
    "economy": "![Tokens computed again, by who gives way first](economy.svg)",
}
"""What stands above the tables of a result file."""


def results() -> str:
    """Every result file, in the order of `HEADINGS`."""
    groups = [(heading, _files(name)) for name, heading in HEADINGS.items()]
    return "\n\n".join(_group(heading, paths) for heading, paths in groups if paths)


def _files(name: str) -> list[Path]:
    return [path for path in sorted(RESULTS.glob("*.json")) if path.stem.split("-")[0] == name]


def _group(heading: str, paths: list[Path]) -> str:
    parts = [f"## {heading}"]
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        parts.append(_where(document["environment"], path.stem))
        parts += [CHARTS[path.stem]] if path.stem in CHARTS else []
        for shown in document["tables"]:
            parts += [f"**{shown['title']}**", table(shown["headers"], shown["rows"])]
    return "\n\n".join(parts)


def _where(environment: Mapping[str, Any], stem: str) -> str:
    vectors = f" with {environment['vectors']}" if environment.get("vectors") else ""
    machine = environment.get("gpu") or f"{environment['cpu']}, {environment['cores']} cores{vectors}"
    commit = f", {environment['commit']}" if environment["commit"] else ""
    return f"`{stem}.json`: {machine}; torch {environment['versions']['torch']}; {environment['date'][:10]}{commit}."
