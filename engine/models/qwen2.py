"""Qwen2 and Qwen2.5: biases on q, k and v, and a sliding window that is mostly switched off."""

from __future__ import annotations

from engine.models.family import Family
from engine.models.keys import Keys


def qwen_window(keys: Keys, num_layers: int) -> int | None:
    """Reads the window of Qwen2 and Qwen3: one for all layers, or none.

    Raises:
        ModelLoadError: Some layers slide and some do not, which the paged cache here does not separate.
    """
    window = keys.integer("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    num_full = num_layers if window is None else min(num_layers, keys.integer("max_window_layers", 28, minimum=0))
    named = keys.raw("layer_types")
    if named is not None:
        if not isinstance(named, list) or len(named) != num_layers:
            keys.fail("layer_types", f"must list a type for each of the {num_layers} layers")
        unknown = set(named) - {"full_attention", "sliding_attention"}
        if unknown:
            keys.fail("layer_types", f"names unsupported layer types: {', '.join(sorted(map(str, unknown)))}")
        num_full = named.count("full_attention")
        if num_full < num_layers and window is None:
            keys.fail("layer_types", "names sliding layers, but use_sliding_window is not true")
    if 0 < num_full < num_layers:
        at_fault = "max_window_layers" if named is None else "layer_types"
        keys.fail(at_fault, f"mixes {num_full} full and {num_layers - num_full} sliding layers, which is not supported")
    return window if num_full == 0 else None


QWEN2 = Family(
    architecture="qwen2",
    hf_class="Qwen2ForCausalLM",
    model_type="qwen2",
    gguf_arch="qwen2",
    attention_bias=True,
    default_kv_heads=32,
    window=qwen_window,
)
