"""Which families there are, and which of them a model file means."""

from __future__ import annotations

from typing import Any

from engine.models.family import Family
from engine.models.keys import Keys
from engine.models.llama import LLAMA
from engine.models.mistral import MISTRAL
from engine.models.qwen2 import QWEN2
from engine.models.qwen3 import QWEN3

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2, QWEN3)
"""Every family that can be loaded."""


def family_of_config(keys: Keys) -> Family:
    """Finds the family of a config.json by `architectures`, else by `model_type`.

    Raises:
        ModelLoadError: It names none, several, or one that is not known.
    """
    named: Any = keys.raw("architectures")
    if named:
        if not isinstance(named, list) or len(named) != 1:
            keys.fail("architectures", f"must name exactly one class, not {named!r}")
        known = {name: family for family in FAMILIES for name in (family.hf_class, family.hf_base_class)}
        return _pick(keys, "architectures", named[0], known)
    model_type = keys.text("model_type")
    return _pick(keys, "model_type", model_type, {family.model_type: family for family in FAMILIES})


def family_of_gguf(keys: Keys) -> Family:
    """Finds the family of GGUF metadata.

    Raises:
        ModelLoadError: It names none, or one that is not known.
    """
    known = {family.gguf_arch: family for family in FAMILIES if family.gguf_arch is not None}
    return _pick(keys, "general.architecture", keys.text("general.architecture"), known)


def _pick(keys: Keys, key: str, name: Any, known: dict[str, Family]) -> Family:
    if name not in known:
        keys.fail(key, f"names the unsupported architecture {name!r}; supported are {', '.join(sorted(known))}")
    return known[name]
