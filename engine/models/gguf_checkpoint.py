"""Weights of a GGUF file under Hugging Face names, llama.cpp's reordering undone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from engine.errors import ModelLoadError
from engine.models.fingerprint import fingerprint
from engine.models.gguf_config import ROPE_FACTORS, read_gguf_config, read_gguf_defaults
from engine.models.gguf_file import GGUFFile
from engine.models.registry import family_of_gguf

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


class GGUFCheckpoint:
    """A GGUF file as a checkpoint; see `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        """Reads header and configuration.

        Raises:
            ModelLoadError: The file is damaged, of an unsupported architecture, or has tensors of unknown names.
        """
        self.file = GGUFFile(path)
        self.config = read_gguf_config(self.file)
        self.defaults = read_gguf_defaults(self.file)
        self._permuted = family_of_gguf(self.file.metadata).gguf_permutes_qk
        self._stored = {self._rename(name): name for name in sorted(self.file.names() - {ROPE_FACTORS})}

    def names(self) -> set[str]:
        """Names of all tensors, as Hugging Face calls them."""
        return set(self._stored)

    def tensors(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every tensor in `dtype` (vectors in float32) on the CPU; see `Checkpoint.tensors`."""
        for name, stored in self._stored.items():
            is_vector = len(self.file.shape(stored)) == 1
            yield name, self._restored(name, self.file.tensor(stored, torch.float32 if is_vector else dtype))

    def fingerprint(self) -> str:
        """Hex digest, the same for the same content."""
        return fingerprint(self.config, [self.file.path])

    def describe(self, name: str) -> str:
        """Where a tensor lies, for messages."""
        stored = self._stored.get(name)
        return f"{self.file.path}: tensor {stored or name!r}" + (f" ({name})" if stored else "")

    def _rename(self, stored: str) -> str:
        match = _NAME.fullmatch(stored)
        layer = match["layer"] if match else None
        part = (_INNER if layer else _OUTER).get(match["part"]) if match else None
        if match is None or part is None:
            raise ModelLoadError(f"{self.file.path}: unexpected tensor {stored!r}")
        return f"model.layers.{layer}.{part}.{match['kind']}" if layer else f"{part}.{match['kind']}"

    def _restored(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Puts the two halves of each head one after the other again, where llama.cpp interleaved them."""
        config = self.config
        num_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if not self._permuted or num_heads is None or tensor.shape[0] != num_heads * config.head_dim:
            return tensor
        pairs = tensor.view(num_heads, config.head_dim // 2, 2, *tensor.shape[1:])
        return pairs.transpose(1, 2).reshape(tensor.shape)
