"""A model directory of random weights in a known shape, with the tokenizer of a stored model, to be served.

python -m loadtests.random_model --shape qwen3-0.6b --tokenizer smollm2-135m --out /tmp/qwen3-random
python -m loadtests.random_model --shape tiny --tokenizer made --out /tmp/tiny

How fast a server is does not depend on the numbers, so it can be measured where a model's weights cannot be had. The
vocabulary is the tokenizer's, for every token drawn must have a text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.models.config import ModelConfig
from engine.models.parameters import parameter_shapes
from engine.models.shapes import SHAPES
from engine.text.gguf_tokenizer import load_gguf
from engine.text.hf_tokenizer import load_directory
from loadtests.made_tokenizer import MADE, make_tokenizer
from loadtests.models import locate

MADE_IDS = 49_152
"""Of the tokenizer that is made where no model brings one."""

TINY = replace(
    SHAPES["qwen3-0.6b"],
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=8192,
)
"""A shape that any machine computes in no time: for trying measurements out."""

_CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def shapes() -> dict[str, ModelConfig]:
    """Those that are written, by name."""
    return {**SHAPES, "tiny": TINY}


def tokenizer_of(name: str) -> Path | None:
    """Where the tokenizer is that `--tokenizer` names; None for one that is made.

    Raises:
        SourceError: There is no such model here.
    """
    if name == MADE:
        return None
    directory = Path(name)  # which need not hold a model
    return directory if (directory / "tokenizer.json").is_file() else locate(name)


def write_random_model(shape: str, tokenizer: Path | None, directory: Path, *, device: str = "cpu") -> Path:
    """Writes config.json, tokenizer.json and bfloat16 weights.

    Args:
        shape: A name of `engine.models.shapes`, or `tiny`.
        tokenizer: Hugging Face directory or GGUF file whose tokenizer to take; None makes one.
        directory: Where to; made if it is missing.
        device: Where numbers are drawn.

    Raises:
        KeyError: The shape is unknown, or of a family that is not written here.
        ModelLoadError: There is no tokenizer.
    """
    if tokenizer is None:
        library = make_tokenizer(MADE_IDS)
    else:
        library = (load_directory(tokenizer) if tokenizer.is_dir() else load_gguf(tokenizer)).library
    config = replace(shapes()[shape], vocab_size=library.get_vocab_size())
    directory.mkdir(parents=True, exist_ok=True)
    library.save(str(directory / "tokenizer.json"))
    torch.manual_seed(0)
    tensors = {name: _draw(name, shape, device) for name, shape in parameter_shapes(config).items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(_config_json(config), indent=2) + "\n")  # last: all is there
    return directory


def _draw(name: str, shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Norms of ones; matrices scaled by their inputs, so that no sum fades or overflows with depth."""
    if len(shape) == 1:
        return (torch.zeros if name.endswith(".bias") else torch.ones)(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, shape[-1] ** -0.5).cpu()


def _config_json(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.random_model", description="Write random weights.")
    parser.add_argument("--shape", choices=sorted(shapes()), required=True, help="whose shape")
    parser.add_argument(
        "--tokenizer", default="smollm2-135m", help=f"stored model, directory or file with a tokenizer, or {MADE}"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--device", default="cpu", help="where to draw the numbers")
    options = parser.parse_args(argv)
    print(write_random_model(options.shape, tokenizer_of(options.tokenizer), options.out, device=options.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
