"""What was measured on one NVIDIA H200, and what vLLM reaches on the same card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from docs.pages import ROOT

RESULTS = ROOT / "loadtests" / "results"


@dataclass(frozen=True, slots=True)
class Peer:
    """vLLM 0.26.0 on one H200: bfloat16, random weights, greedy, CUDA graphs, its own attention (FlashAttention-3).

    Attributes:
        name: Of the model.
        step_ms: By width: (time of 272 tokens - time of 16) / 256, after prompts of 128.
        prefill_tokens_per_s: By prompts at once and tokens of each.
    """

    name: str
    step_ms: Mapping[int, float]
    prefill_tokens_per_s: Mapping[tuple[int, int], float]


VLLM: Mapping[str, Peer] = {
    "qwen3-0.6b": Peer(
        "Qwen3-0.6B",
        {1: 1.628, 8: 1.581, 32: 2.002, 64: 2.501, 256: 5.110},
        {(1, 2048): 2048 / 0.0156, (16, 2048): 391_499},
    ),
    "llama-3.2-1b": Peer("Llama-3.2-1B", {1: 2.05, 8: 2.57, 32: 2.83, 64: 3.62, 256: 8.83}, {(16, 2048): 265_049}),
    "llama-3.1-8b": Peer(
        "Llama-3.1-8B",
        {1: 4.948, 8: 5.071, 32: 5.527, 64: 6.235, 256: 11.867},
        {(1, 2048): 2048 / 0.0524, (16, 2048): 42_049},
    ),
}
"""By the name that `loadtests.offline --shape` knows; measured with vLLM 0.26.0 on one H200."""

VLLM_HTTP: Mapping[int, tuple[float, float]] = {
    1: (535, 15.9),
    8: (2_872, 50.9),
    64: (15_299, 173),
    256: (11_649, 541),
}
"""By streams: output tokens/s and median TTFT in ms of vLLM 0.26.0's server, asked by its own client from the same
16-core host: Qwen3-0.6B with 49,152 tokens of vocabulary, prompts of 128, answers of 256 tokens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One file of `loadtests.offline`.

    Attributes:
        shape: Of the model.
        label: For people: the model, and how tokens are chosen unless greedily.
        document: All of it.
        peer: What vLLM does with the same; None for what it was not measured with.
    """

    shape: str
    label: str
    document: Mapping[str, Any]
    peer: Peer | None

    @property
    def widths(self) -> Sequence[Mapping[str, Any]]:
        """Rows of widths that have a time of a step."""
        return [row for row in self.document["widths"] if row.get("step_ms")]


def measured(results: Path = RESULTS) -> list[Measured]:
    """Files of the H200 that tell what a step takes; in the order of the models' sizes."""
    found = [_read(path) for path in _files(results, "offline") if not _is_of_prompts(path)]
    known = list(VLLM)
    order = {shape: index for index, shape in enumerate(known)}
    timed = [one for one in found if one is not None and one.widths]
    return sorted(timed, key=lambda one: (order.get(one.shape, len(known)), one.label))


def prompts(results: Path = RESULTS) -> list[Measured]:
    """Files of the H200 that tell how long prompts take: of a model those of prompts alone, after enough to warm up."""
    found = [_read(path) for path in _files(results, "offline") if _is_of_prompts(path)]
    alone = [_how_started(one) for one in found if one is not None]
    shapes = {one.shape for one in alone}
    greedy = [one for one in measured(results) if not one.document["engine"].get("temperature")]
    rest = [one for one in greedy if one.shape not in shapes]
    order = {shape: index for index, shape in enumerate(VLLM)}
    return sorted([*alone, *rest], key=lambda one: (order.get(one.shape, len(order)), one.label))


def served(results: Path = RESULTS) -> list[Mapping[str, Any]]:
    """Files of load tests over HTTP in front of the H200."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in _files(results, "run")]


def _is_of_prompts(path: Path) -> bool:
    """Whether a file tells of prompts alone, whatever else was measured on the way."""
    return "-prompts" in path.stem


def _how_started(one: Measured) -> Measured:
    """The label says where steps with prompts are not recorded, and what else attends than our own kernels."""
    engine = one.document["engine"]
    label = one.label if engine.get("prompt_graphs") else f"{one.label}, not recorded"
    if "cudnn" in engine["attention"]:
        label += ", cuDNN"
    return replace(one, label=label)


def _read(path: Path) -> Measured | None:
    return _measured(json.loads(path.read_text(encoding="utf-8")))


def _files(results: Path, kind: str) -> list[Path]:
    return sorted(results.glob(f"{kind}-h200*.json"))


def _measured(document: Mapping[str, Any]) -> Measured | None:
    engine = document["engine"]
    shape = str(engine["model"]).rpartition(" ")[2]
    peer, name = VLLM.get(shape), VLLM[shape].name if shape in VLLM else shape
    asked = [name]
    if engine.get("temperature"):
        asked.append(f"temperature {engine['temperature']:g}")
    if engine["dtype"] != "bfloat16":
        asked.append(f"{engine['dtype']} weights")
    if engine.get("kv_dtype", engine["dtype"]) in ("int8", "fp8"):
        asked.append(f"{engine['kv_dtype']} K and V")
    if engine.get("step", "torch") != "cuda":
        asked.append(f"step {engine.get('step', 'torch')}")
    return Measured(shape, ", ".join(asked), document, peer if len(asked) == 1 else None)
