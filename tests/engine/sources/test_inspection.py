"""Model files are checked without being loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from engine.sources.errors import DamagedModel, UnsupportedModel
from engine.sources.inspection import check_safetensors, inspect_directory, inspect_gguf
from tests.engine.sources.files import gguf_bytes, hub_files, safetensors_bytes, write_files


def sharded_files() -> dict[str, bytes]:
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files = hub_files()
    del files["model.safetensors"]
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    files["model-00001-of-00002.safetensors"] = safetensors_bytes(100)
    files["model-00002-of-00002.safetensors"] = safetensors_bytes(200)
    return files


def test_a_sharded_directory_is_whole_with_all_its_shards(tmp_path: Path) -> None:
    write_files(tmp_path, {**sharded_files(), "consolidated.safetensors": safetensors_bytes(10)})
    inspection = inspect_directory(tmp_path)
    assert inspection.entry == "."
    assert [path for path in inspection.files if path.endswith(".safetensors")] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    files = sharded_files()
    del files["model-00002-of-00002.safetensors"]
    with pytest.raises(DamagedModel, match=r"model-00002-of-00002\.safetensors, named in .* is missing"):
        inspect_directory(write_files(tmp_path, files))


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "../secret.safetensors"}}).encode()
    with pytest.raises(DamagedModel, match="outside of the directory"):
        inspect_directory(write_files(tmp_path, {**hub_files(), "model.safetensors.index.json": index}))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"config.json": None}, UnsupportedModel, "no config.json"),
        ({"config.json": b"{"}, DamagedModel, "config.json is not valid JSON"),
        ({"config.json": b"[]"}, DamagedModel, "should hold a JSON object"),
        ({"tokenizer.json": None}, UnsupportedModel, "no tokenizer.json"),
        ({"model.safetensors": None}, UnsupportedModel, "pickles only"),
        ({"model.safetensors": None, "pytorch_model.bin": None}, UnsupportedModel, "no weights"),
        ({"model.safetensors": safetensors_bytes()[:-1]}, DamagedModel, "has 8079 bytes, its header says 8080"),
        ({"model.safetensors": b"1234"}, DamagedModel, "truncated: 4 bytes"),
        ({"model.safetensors": struct.pack("<Q", 1 << 40) + b"{}"}, DamagedModel, "header claims"),
        ({"model.safetensors": struct.pack("<Q", 2) + b"{]"}, DamagedModel, "not valid JSON"),
        ({"model.safetensors": struct.pack("<Q", 9) + b'{"a": {}}'}, DamagedModel, "damaged header"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, change: dict[str, bytes | None], error: type[Exception], message: str
) -> None:
    files = {**hub_files(), **change}
    write_files(tmp_path, {path: content for path, content in files.items() if content is not None})
    with pytest.raises(error, match=message):
        inspect_directory(tmp_path)


def test_an_empty_tensor_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    check_safetensors(path)


@pytest.mark.parametrize(
    ("content", "name", "error", "message"),
    [
        (b"not a model", "m.gguf", UnsupportedModel, "no GGUF file"),
        (b"GGUF\x03", "m.gguf", DamagedModel, "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "m.gguf", UnsupportedModel, "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "m.gguf", UnsupportedModel, "little-endian"),
        (gguf_bytes(), "m-00001-of-00003.gguf", UnsupportedModel, "split GGUF"),
    ],
)
def test_a_file_that_we_cannot_read_as_gguf_is_refused(
    tmp_path: Path, content: bytes, name: str, error: type[Exception], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        inspect_gguf(tmp_path, name)
