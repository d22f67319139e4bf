"""An `adapter_config.json` as PEFT writes it: what kind of adapter, and how strong; the rest is refused."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import ModelLoadError
from engine.models.hf_config import read_json
from engine.models.keys import Keys

AdapterKind = Literal["lora", "ia3"]

_KINDS: dict[str, AdapterKind] = {"LORA": "lora", "IA3": "ia3"}

_CHANGED_BASE = ("pissa", "olora", "corda", "loftq")
"""Beginnings of `init_lora_weights` that take something out of the base model, which is not in the adapter's files."""

_UNSUPPORTED = (
    ("modules_to_save", "replaces whole modules of the model"),
    ("layer_replication", "repeats layers of the model"),
    ("trainable_token_indices", "changes embeddings"),
    ("target_parameters", "changes parameters that are no projections"),
    ("lora_bias", "adds a bias to the low-rank product"),
    ("use_qalora", "groups inputs (QALoRA)"),
    ("alora_invocation_tokens", "sets in at a token of the prompt (activated LoRA)"),
)
"""Keys that must be absent, null, false or empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeftConfig:
    """How an adapter's tensors are to be read.

    Attributes:
        file: Where this was read.
        kind: LoRA (arXiv 2106.09685) or IA3 (arXiv 2205.05638).
        base: The model it says it was trained on; empty if it does not say.
        alpha: Strength of a LoRA.
        alpha_pattern: The same for modules whose name ends as the key, a regular expression, says.
        is_rank_stabilized: The strength is divided by the root of the rank (arXiv 2312.03732) instead of the rank.
        has_magnitudes: The rows of each changed matrix have lengths of their own (DoRA, arXiv 2402.09353).
        feedforward: Of an IA3: modules whose inputs are scaled instead of their outputs.
    """

    file: Path
    kind: AdapterKind
    base: str
    alpha: float = 0.0
    alpha_pattern: tuple[tuple[re.Pattern[str], float], ...] = ()
    is_rank_stabilized: bool = False
    has_magnitudes: bool = False
    feedforward: re.Pattern[str] | None = None

    @classmethod
    def read(cls, directory: Path) -> PeftConfig:
        """Reads the file of a directory.

        Raises:
            ModelLoadError: It is missing, damaged, or asks for what is not supported here.
        """
        file = directory / "adapter_config.json"
        if not file.is_file():
            raise ModelLoadError(f"{file}: no such file; an adapter is a directory as PEFT saves it")
        keys = read_json(file)
        named = keys.text("peft_type")
        kind = _KINDS.get(named.upper())
        if kind is None:
            keys.fail("peft_type", f"is {named!r}; supported are {', '.join(_KINDS)}, and DoRA as a LoRA")
        for key, meaning in _UNSUPPORTED:
            if keys.raw(key):
                keys.fail(key, f"is set: the adapter {meaning}, which is not supported")
        base = keys.text("base_model_name_or_path", "")
        if kind == "ia3":
            return cls(file=file, kind=kind, base=base, feedforward=_names(keys, "feedforward_modules"))
        _check_lora(keys)
        return cls(
            file=file,
            kind=kind,
            base=base,
            alpha=keys.number("lora_alpha", 8.0, above=-math.inf),
            alpha_pattern=_alphas(keys),
            is_rank_stabilized=keys.flag("use_rslora", False),
            has_magnitudes=keys.flag("use_dora", False),
        )

    def scale(self, module: str, rank: int) -> float:
        """Factor of the low-rank product of a module, e.g. `model.layers.0.self_attn.q_proj`."""
        alpha = next((value for pattern, value in self.alpha_pattern if pattern.match(module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    def scales_inputs(self, module: str) -> bool:
        """Whether an IA3 scales the inputs of a module instead of its outputs."""
        return self.feedforward is not None and self.feedforward.match(module) is not None


def _check_lora(keys: Keys) -> None:
    bias = keys.text("bias", "none")
    if bias != "none":
        keys.fail("bias", f"is {bias!r}: the adapter brings biases, which is not supported")
    start = keys.raw("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        keys.fail(
            "init_lora_weights",
            f"is {start!r}, which changes the base model too; save the adapter converted to a plain LoRA "
            "(save_pretrained with path_initial_model_for_weight_conversion)",
        )


def _alphas(keys: Keys) -> tuple[tuple[re.Pattern[str], float], ...]:
    nested = keys.nested("alpha_pattern")
    if nested is None:
        return ()
    return tuple((_ending(nested, name, name), nested.number(name, above=-math.inf)) for name in nested.names())


def _names(keys: Keys, key: str) -> re.Pattern[str] | None:
    """Module names: a list of how they end, or a regular expression of the whole; None for none."""
    value: Any = keys.raw(key)
    if not value:
        return None
    if isinstance(value, str):
        try:
            return re.compile(rf"(?:.*\.)?(?:{value})\Z")
        except re.error as error:
            keys.fail(key, f"is no regular expression: {error}")
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        keys.fail(key, f"must be a list of module names, not {value!r}")
    return re.compile(rf"(?:.*\.)?(?:{'|'.join(map(re.escape, sorted(value)))})\Z")


def _ending(keys: Keys, key: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(?:.*\.)?(?:{pattern})\Z")
    except re.error as error:
        keys.fail(key, f"is no regular expression: {error}")
