"""Llama 2 and 3, SmolLM2 and other models that declare themselves one."""

from __future__ import annotations

from engine.models.family import Family

LLAMA = Family(
    architecture="llama",
    hf_class="LlamaForCausalLM",
    model_type="llama",
    gguf_arch="llama",
    gguf_permutes_qk=True,
)
