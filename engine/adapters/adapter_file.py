"""The tensors of an adapter's directory, sorted by the modules that they change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?:model\.)?layers\.(?P<layer>\d+)\.(?P<module>(?:self_attn|mlp)\.\w+)\."
    r"(?P<part>lora_A|lora_B|lora_magnitude_vector|ia3_l)(?:\.default)?(?:\.weight)?"
)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """One `adapter_model.safetensors`.

    Attributes:
        file: Where it lies.
        digest: Hex digest of its content and that of its configuration.
        modules: Tensors in float32 by layer and module (`self_attn.q_proj`), then by part (`lora_A`).
    """

    file: Path
    digest: str
    modules: dict[tuple[int, str], dict[str, torch.Tensor]]

    @classmethod
    def read(cls, directory: Path) -> AdapterFile:
        """Reads a directory whole: adapters are small.

        Raises:
            ModelLoadError: It is missing or damaged, or a tensor in it is of a kind that has no place here.
        """
        file = directory / "adapter_model.safetensors"
        if not file.is_file():
            others = sorted(path.name for path in directory.glob("adapter_model*")) or "nothing"
            raise ModelLoadError(f"{file}: no such file; found {others} (only safetensors are read)")
        modules: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
        for name, tensor in _tensors(file):
            match = _NAME.fullmatch(name)
            if match is None:
                raise ModelLoadError(
                    f"{file}: tensor {name!r} has no place: supported are LoRA, DoRA and IA3 of a layer's projections"
                )
            if tensor.dtype not in _FLOATS:
                raise ModelLoadError(f"{file}: tensor {name!r}: dtype {tensor.dtype} is not supported")
            if not torch.isfinite(tensor).all():
                raise ModelLoadError(f"{file}: tensor {name!r} holds values that are not finite")
            parts = modules.setdefault((int(match["layer"]), match["module"]), {})
            if match["part"] in parts:
                raise ModelLoadError(f"{file}: tensor {name!r} is there twice under different names")
            parts[match["part"]] = tensor.float()
        if not modules:
            raise ModelLoadError(f"{file}: holds no tensors")
        return cls(file, _digest(directory / "adapter_config.json", file), modules)


def _tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # it is no mapping
                yield name, opened.get_tensor(name)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ModelLoadError(f"{file}: not a whole safetensors file: {error}") from error


def _digest(*files: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        digest.update(b"\0end of file\0")
    return digest.hexdigest()
