"""Mistral: Llama with a sliding window. Its GGUF files call themselves llama."""

from __future__ import annotations

from engine.models.family import Family
from engine.models.keys import Keys


def mistral_window(keys: Keys, num_layers: int) -> int | None:
    """Reads `sliding_window`: null means none, absent means 4096 as in `transformers`.

    Raises:
        ModelLoadError: The window is no whole number of at least 1.
    """
    if keys.has_null("sliding_window"):
        return None
    return keys.integer("sliding_window", 4096)


MISTRAL = Family(
    architecture="mistral",
    hf_class="MistralForCausalLM",
    model_type="mistral",
    default_kv_heads=8,
    window=mistral_window,
)
