"""Engines with the native step, without it, and where it is missing: all serve, and say which they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, ParallelConfig, StepName
from engine.errors import ModelLoadError
from engine.loop import EngineLoop
from engine.native import library
from engine.native.building.record import BuildRecord
from engine.native.library import FORM_VARIABLE, native_module, native_status
from engine.process import EngineProcess
from tests.equivalence.harness import request, run
from tests.tiny_models import write_tiny_model

NEEDS_NATIVE = pytest.mark.skipif(native_module() is None, reason="the native step is not built here")

HIDES_THE_MODULE = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "engine.native._native":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", seed=2)


@pytest.fixture
def without_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place where the native step was not built."""
    monkeypatch.setattr(library, "build_record", lambda: BuildRecord(False, "no C++ compiler was found"))
    monkeypatch.setattr(library, "_MODULE", "engine.native._absent")
    library._load.cache_clear()
    yield
    library._load.cache_clear()


@contextmanager
def engine(model: Path, step: StepName = "auto", **fields: Any) -> Iterator[EngineLoop]:
    loop = build_loop(config(model, step=step, **fields))
    try:
        yield loop
    finally:
        loop.close()


def config(model: Path, **fields: Any) -> EngineConfig:
    return EngineConfig(
        model=str(model),
        device="cpu",
        seed=0,
        check_integrity=True,
        kv=KVConfig(num_pages=64),
        parallel=ParallelConfig(num_threads=1),
        **fields,
    )


def answer(loop: EngineLoop) -> list[int]:
    return run(loop, [request("a", range(3, 12), max_tokens=12)])[("a", 0)]


def test_an_engine_that_is_told_to_computes_with_torch(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with engine(model, "torch") as loop:
        assert (loop.info.step, loop.info.attention_backend) == ("torch", "cpu")
        assert (loop.info.dtype, loop.info.kv_dtype) == ("bfloat16", "float32")
        assert len(answer(loop)) == 12
    assert caplog.messages == []


def test_an_engine_without_the_module_serves_with_torch_and_says_so_once(
    model: Path, without_module: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with engine(model) as loop:
        assert loop.info.step == "torch"
        tokens = answer(loop)
    assert caplog.messages == [
        "native step not available (it was not built: no C++ compiler was found); serving with torch"
    ]
    with engine(model, "torch") as loop:
        assert answer(loop) == tokens


def test_what_only_the_native_step_can_do_fails_without_it_before_anything_is_loaded(
    tmp_path: Path, without_module: None
) -> None:
    for fields in ({"step": "native"}, {"weights": "int8"}):
        with pytest.raises(ModelLoadError, match="not available: it was not built: no C\\+\\+ compiler was found"):
            build_loop(config(tmp_path / "absent", **fields))


def test_a_server_that_falls_back_tells_it_in_its_log(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDES_THE_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with EngineProcess(config(model), f"ipc://{tmp_path}/engine") as process:
        info = process.wait_ready(60)
        assert process.stop() == 0
    assert info.step == "torch"
    log = capfd.readouterr().err
    assert log.count("native step not available (it was not built: ") == 1
    assert "serving with torch" in log


@NEEDS_NATIVE
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_an_engine_with_the_module_computes_with_it(model: Path, weights: str) -> None:
    with engine(model, weights=weights) as loop:
        assert loop.info.step == f"native {native_status().form}"
        assert loop.info.attention_backend == "native"
        assert (loop.info.dtype, loop.info.kv_dtype) == (weights, "bfloat16")
        assert loop.info.num_parameters > 0
        tokens = answer(loop)
        assert tokens == answer(loop)
    assert len(tokens) == 12


@NEEDS_NATIVE
def test_every_form_of_this_processor_can_be_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in native_status().forms:
        monkeypatch.setenv(FORM_VARIABLE, form)
        with engine(model) as loop:
            assert loop.info.step == f"native {form}"
            assert len(answer(loop)) == 12


def test_a_form_that_is_not_here_stops_the_start_and_lists_those_that_are(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_forms(monkeypatch, ["avx512", "avx2"])
    monkeypatch.setenv(FORM_VARIABLE, "neon")
    with pytest.raises(ModelLoadError, match="WYE_NATIVE_FORM is 'neon', but here it can be avx2, avx512"):
        build_loop(config(model))
    monkeypatch.setenv(FORM_VARIABLE, "")
    assert native_status().form == "avx512"


def test_a_processor_that_runs_no_form_counts_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_forms(monkeypatch, [])
    status = native_status()
    assert not status.available
    assert "AVX2" in status.reason


def test_a_module_that_does_not_load_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_native.abi3.so").write_bytes(b"not an ELF file")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(library, "_MODULE", "broken_native")
    library._load.cache_clear()
    try:
        assert native_module() is None
        assert native_status().reason.startswith("it does not load: ")
    finally:
        library._load.cache_clear()


def test_a_source_tree_that_was_not_installed_is_told_how_to_build(
    monkeypatch: pytest.MonkeyPatch, without_module: None
) -> None:
    monkeypatch.setattr(library, "build_record", lambda: None)
    assert "`make install` builds it" in native_status().reason


def _pretend_forms(monkeypatch: pytest.MonkeyPatch, forms: list[str]) -> None:
    module = ModuleType("_native")
    module.__dict__["forms"] = lambda: forms
    monkeypatch.setattr(library, "native_module", lambda: module)
