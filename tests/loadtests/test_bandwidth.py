"""The memory probe is compiled once, reads what it is told to, and gives the floor of a step."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import gguf
import msgspec
import pytest

from loadtests.bandwidth import (
    MemoryProbe,
    ProbeFailed,
    bytes_per_step,
    compiled_probe,
    floor_rate,
    mebibytes,
    weights_read,
)
from loadtests.contest import Shape
from tests.gateway.serving.harness import INFO
from tests.loadtests.fake_peers import GIGABYTES_PER_S, write_compiler, write_script
from tests.tiny_models import write_tiny_gguf, write_tiny_model

SHAPE = Shape(phase="decode", width=8, num_prompt=128, num_output=64)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CC", str(write_compiler(tmp_path / "compiler")))
    return compiled_probe(tmp_path / "peers")


def test_the_fastest_number_of_streams_counts_by_its_median(program: Path) -> None:
    probe = MemoryProbe(program, 2, 64)
    assert probe.measure(passes=3) == GIGABYTES_PER_S
    probe.rounds += [30.0, 13.0]
    assert probe.gigabytes_per_s == 13.0


def test_a_probe_is_compiled_once(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(program.with_name("gone")))
    assert compiled_probe(program.parent) == program


def test_a_compiler_that_is_missing_or_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(write_script(tmp_path / "cc", "sys.exit('unknown option')")))
    with pytest.raises(ProbeFailed, match=r"cc refused the memory probe:\nunknown option"):
        compiled_probe(tmp_path / "peers")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ProbeFailed, match="needs a C compiler"):
        compiled_probe(tmp_path / "peers")


@pytest.mark.parametrize(("body", "error"), [("sys.exit('no memory')", "no memory"), ("print('?')", "float")])
def test_a_probe_that_fails_is_told(tmp_path: Path, body: str, error: str) -> None:
    with pytest.raises(ProbeFailed, match=error):
        MemoryProbe(write_script(tmp_path / "probe", body), 2, 64).measure()


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_the_real_probe_reads_memory_and_refuses_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    program = compiled_probe(tmp_path)
    assert MemoryProbe(program, 2, 4).measure(passes=1) > 0
    with pytest.raises(ProbeFailed, match=r"THREADS must be 1\.\.1024, got 0"):
        MemoryProbe(program, 0, 4).measure(passes=1)
    with pytest.raises(ProbeFailed, match="1 MiB are too few for 1024 threads of 16 streams"):
        MemoryProbe(program, 1024, 1)._median(16, 1)


@pytest.mark.parametrize(("family", "looked_up"), [("qwen3", False), ("llama", True)])
def test_an_embedding_that_is_no_head_is_not_read(tmp_path: Path, family: str, looked_up: bool) -> None:
    directory = write_tiny_model(tmp_path / "model", "qwen3" if family == "qwen3" else "llama")
    path = write_tiny_gguf(tmp_path / "model.gguf", directory)
    sizes = {tensor.name: int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors}
    expected = sum(sizes.values()) - (sizes["token_embd.weight"] if looked_up else 0)
    assert weights_read(path) == expected


def test_a_step_reads_its_weights_and_the_tokens_before_it() -> None:
    info = msgspec.structs.replace(INFO, dtype="bfloat16", page_size=16, page_bytes=1600)
    assert bytes_per_step(info, 1000, SHAPE) == 2000 + 8 * 160 * 100
    int8 = msgspec.structs.replace(info, dtype="int8")
    assert bytes_per_step(int8, 6400, dataclasses.replace(SHAPE, width=1)) == 6400 + 200 + 160 * 100


def test_the_floor_is_bytes_over_bandwidth() -> None:
    assert floor_rate(SHAPE, 200e6, 40.0) == pytest.approx(8 / 0.005)
    assert mebibytes(100.0) == 1
    assert mebibytes(269e6) == 257
