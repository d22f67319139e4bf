"""What a model's files say of its pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from engine.errors import ModelLoadError
from engine.request import Pooling
from engine.text.pooling import load_pooling


def write_directory(directory: Path, config: Any, modules: Any = None, folder: str = "1_Pooling") -> Path:
    """A directory with what sentence-transformers puts beside a model."""
    (directory / folder).mkdir(parents=True)
    (directory / folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if modules is not None:
        (directory / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return directory


def modules(*kinds: str, folder: str = "1_Pooling") -> list[dict[str, Any]]:
    """A list of modules; the one that pools lies in `folder`."""
    paths = {"Transformer": "", "Pooling": folder}
    return [
        {
            "idx": at,
            "name": str(at),
            "path": paths.get(kind, f"{at}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]


def modes(**on: bool) -> dict[str, Any]:
    """The older spelling: a flag a mode."""
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": 64, **{f"pooling_mode_{name}": on.get(name, False) for name in names}}


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (modes(mean_tokens=True), Pooling.MEAN),
        (modes(lasttoken=True), Pooling.LAST),
        ({**modes(lasttoken=True), "include_prompt": True}, Pooling.LAST),
        ({"embedding_dimension": 64, "pooling_mode": "mean"}, Pooling.MEAN),
        ({"embedding_dimension": 64, "pooling_mode": "lasttoken"}, Pooling.LAST),
    ],
)
def test_sentence_transformers_say_it_beside_the_model(tmp_path: Path, config: Any, pooling: Pooling) -> None:
    assert load_pooling(write_directory(tmp_path / "a", config)) is pooling
    listed = write_directory(tmp_path / "b", config, modules("Transformer", "Pooling", "Normalize"))
    assert load_pooling(listed) is pooling


def test_the_list_of_modules_says_where_the_pooling_lies(tmp_path: Path) -> None:
    listed = modules("Transformer", "Pooling", folder="2_Pooling")
    assert load_pooling(write_directory(tmp_path, modes(lasttoken=True), listed, "2_Pooling")) is Pooling.LAST


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (modes(cls_token=True), "'cls_token' is not supported"),
        (modes(mean_tokens=True, max_tokens=True), r"'mean_tokens\+max_tokens' is not supported"),
        (modes(), "'nothing' is not supported"),
        ({"pooling_mode": "max"}, "'max' is not supported; name one of mean, last"),
        ({**modes(mean_tokens=True), "include_prompt": False}, "'include_prompt' is false"),
        ([1], "must hold a JSON object"),
    ],
)
def test_a_pooling_that_is_not_known_stops_the_start(tmp_path: Path, config: Any, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"1_Pooling/config\.json: .*{reason}"):
        load_pooling(write_directory(tmp_path, config))


def test_a_further_layer_stops_the_start(tmp_path: Path) -> None:
    listed = modules("Transformer", "Pooling", "Dense")
    with pytest.raises(ModelLoadError, match=r"modules\.json: the module 'Dense' is not supported"):
        load_pooling(write_directory(tmp_path, modes(mean_tokens=True), listed))


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\udcff"])
def test_a_damaged_file_stops_the_start(tmp_path: Path, text: str) -> None:
    directory = write_directory(tmp_path, {})
    (directory / "1_Pooling" / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        load_pooling(directory)


def test_other_models_say_nothing(tmp_path: Path) -> None:
    assert load_pooling(tmp_path) is None
    assert load_pooling(tmp_path / "missing") is None


def write_gguf(path: Path, pooling: int | None) -> Path:
    """A GGUF file of nothing but its head."""
    writer = gguf.GGUFWriter(path, "qwen3")
    if pooling is not None:
        writer.add_uint32("qwen3.pooling_type", pooling)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("stored", "pooling"), [(None, None), (0, None), (1, Pooling.MEAN), (3, Pooling.LAST)])
def test_a_gguf_file_says_it_in_its_head(tmp_path: Path, stored: int | None, pooling: Pooling | None) -> None:
    assert load_pooling(write_gguf(tmp_path / "m.gguf", stored)) is pooling


@pytest.mark.parametrize("stored", [2, 4, 99])
def test_a_gguf_file_that_pools_otherwise_stops_the_start(tmp_path: Path, stored: int) -> None:
    with pytest.raises(ModelLoadError, match=rf"qwen3\.pooling_type {stored} is not supported"):
        load_pooling(write_gguf(tmp_path / "m.gguf", stored))
