"""Random weights in the shape of a file: what stays, what is drawn, and that engines read it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from engine.errors import ModelLoadError
from engine.gguf_metadata import read_metadata
from engine.models.checkpoint import open_checkpoint
from engine.models.gguf_file import GGUFFile
from loadtests.random_gguf import random_gguf
from tests.tiny_models import write_tiny_gguf, write_tiny_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A quantised file whose name holds a dot."""
    model = write_tiny_model(tmp_path / "model")
    return write_tiny_gguf(tmp_path / "tiny-2.5.Q8_0.gguf", model, kind=gguf.GGMLQuantizationType.Q8_0)


def test_metadata_vocabulary_and_shapes_stay(source: Path, tmp_path: Path) -> None:
    made = random_gguf(source, tmp_path / "kept")
    before, after = read_metadata(source), read_metadata(made)
    assert after.pop("general.file_type", None) in (None, int(gguf.LlamaFileType.MOSTLY_BF16))
    before.pop("general.file_type", None)
    assert after == before
    old, new = GGUFFile(source), GGUFFile(made)
    assert {name: new.shape(name) for name in new.names()} == {name: old.shape(name) for name in old.names()}


def test_matrices_are_bfloat16_and_drawn_anew(source: Path, tmp_path: Path) -> None:
    made = random_gguf(source, tmp_path / "kept")
    old, new = GGUFFile(source), GGUFFile(made)
    kinds = {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(made).tensors}
    for name in new.names():
        values = new.tensor(name, torch.float32)
        if values.dim() == 1:
            assert kinds[name] == gguf.GGMLQuantizationType.F32
            assert values.min() == values.max()
            continue
        assert kinds[name] == gguf.GGMLQuantizationType.BF16
        assert not torch.equal(values, old.tensor(name, torch.float32))
        assert values.std().item() == pytest.approx(values.shape[-1] ** -0.5, rel=0.2)


def test_an_engine_opens_the_file(source: Path, tmp_path: Path) -> None:
    made = open_checkpoint(str(random_gguf(source, tmp_path / "kept")))
    assert made.config == open_checkpoint(str(source)).config
    assert made.names() == open_checkpoint(str(source)).names()


def test_a_file_is_made_once_and_under_no_format_but_its_own(source: Path, tmp_path: Path) -> None:
    made = random_gguf(source, tmp_path / "kept")
    written = made.stat().st_mtime_ns
    assert random_gguf(source, tmp_path / "kept") == made
    assert made.stat().st_mtime_ns == written
    assert made.stem.split(".")[1:] == ["BF16"]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no more")
    with pytest.raises(ModelLoadError, match="not a whole GGUF file"):
        random_gguf(tmp_path / "broken.gguf", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
