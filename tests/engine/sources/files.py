"""Small model files for tests: real formats, random numbers."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zipfile
from pathlib import Path

from engine.sources.progress import SilentProgress


class RecordingProgress(SilentProgress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.notes: list[str] = []
        self.last_bytes: dict[str, int] = {}
        self.num_open = 0

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Remembers the label."""
        self.labels.append(label)
        self.num_open += 1

    def update(self, done_bytes: int) -> None:
        """Remembers the newest count."""
        self.last_bytes[self.labels[-1]] = done_bytes

    def end(self) -> None:
        """Counts."""
        self.num_open -= 1

    def note(self, message: str) -> None:
        """Remembers the message."""
        self.notes.append(message)


def random_bytes(count: int, seed: int = 0) -> bytes:
    """Bytes that no compression shortens."""
    return random.Random(seed).randbytes(count)


def gguf_bytes(count: int = 5000, seed: int = 0) -> bytes:
    """A GGUF header followed by noise: enough for whoever does not load it."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + random_bytes(count, seed)


def safetensors_bytes(num_values: int = 2000, seed: int = 0) -> bytes:
    """A valid safetensors file with one float32 tensor."""
    data = random_bytes(num_values * 4, seed)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [num_values], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def hub_files(num_values: int = 2000) -> dict[str, bytes]:
    """A repository's files, some of which do not belong to the model."""
    return {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "generation_config.json": b"{}",
        "model.safetensors": safetensors_bytes(num_values),
        "README.md": b"# read me",
        "pytorch_model.bin": b"pickle",
        "onnx/model.onnx": b"onnx",
    }


def write_files(directory: Path, files: dict[str, bytes]) -> Path:
    """Writes files below a directory and returns it."""
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def write_wheel(directory: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """Writes a wheel that pip accepts."""
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    members = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={hashlib.sha256(data).hexdigest()},{len(data)}\n" for path, data in members.items()
    )
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in members.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return wheel
