"""Qwen3 (dense): each head of q and k is normed, and heads have a width of their own."""

from __future__ import annotations

from engine.models.family import Family
from engine.models.qwen2 import qwen_window

QWEN3 = Family(
    architecture="qwen3",
    hf_class="Qwen3ForCausalLM",
    model_type="qwen3",
    gguf_arch="qwen3",
    qk_norm=True,
    default_head_dim=128,
    default_kv_heads=32,
    window=qwen_window,
)
