"""Backends by name and by device."""

from __future__ import annotations

import pytest

from engine.attention import select
from engine.attention.mixed import MixedBackend
from engine.attention.select import BACKENDS, choose_backend, select_backend
from engine.attention.triton import TritonBackend
from engine.cuda.status import CudaStatus
from engine.errors import ModelLoadError


def test_auto_takes_the_best_of_the_device_and_says_why() -> None:
    assert choose_backend("auto", "cpu").backend.name == "cpu"
    assert "cpu" in choose_backend("auto", "cpu").reason


def test_where_triton_runs_auto_takes_it_and_elsewhere_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(status: CudaStatus) -> None:
        monkeypatch.setattr(select, "cuda_status", lambda device: status)

    answer(CudaStatus(True, "H200, compute capability 9.0"))
    assert choose_backend("auto", "cuda").backend.name == "triton"
    assert choose_backend("auto", "cuda", quantized_kv=True).backend.name == "triton"
    answer(CudaStatus(True, "A100, compute capability 8.0", has_fp8=False))
    assert choose_backend("auto", "cuda", quantized_kv=True).backend.name == "sdpa"
    answer(CudaStatus(False, "V100 has compute capability 7.0; 8.0 is needed"))
    choice = choose_backend("auto", "cuda")
    assert choice.backend.name == "sdpa"
    assert "V100 has compute capability 7.0" in choice.reason
    with pytest.raises(ModelLoadError, match=r"'triton' does not run on cuda: V100"):
        choose_backend("triton", "cuda")


def test_long_steps_go_to_flashinfer_or_else_to_cudnn_where_these_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "cuda_status", lambda device: CudaStatus(True, "H200, compute capability 9.0"))
    monkeypatch.setattr(select, "cudnn_refusal", lambda device: None)
    monkeypatch.setattr(select, "find_spec", lambda name: None)
    choice = choose_backend("auto", "cuda")
    assert isinstance(choice.backend, MixedBackend)
    assert choice.reason.endswith("cuDNN's for steps of many whole prompts")
    assert not isinstance(choose_backend("auto", "cuda", quantized_kv=True).backend, MixedBackend)
    assert select_backend("cudnn", "cuda").name == "cudnn"

    monkeypatch.setattr(select, "find_spec", lambda name: "found")
    assert choose_backend("auto", "cuda").reason.endswith("flashinfer's for long prompts")

    monkeypatch.setattr(select, "find_spec", lambda name: None)
    monkeypatch.setattr(select, "cudnn_refusal", lambda device: "torch has no cuDNN here")
    assert isinstance(choose_backend("auto", "cuda").backend, TritonBackend)
    with pytest.raises(ModelLoadError, match="'cudnn' does not run on cuda: torch has no cuDNN here"):
        choose_backend("cudnn", "cuda")


def test_a_name_is_taken_as_asked() -> None:
    for name, row in BACKENDS.items():
        if row.devices is None or "cpu" in row.devices:
            assert select_backend(name, "cpu").name == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"'flash9'.*auto, cpu, .*sdpa"):
        select_backend("flash9", "cpu")


def test_a_backend_is_refused_on_a_device_it_does_not_run_on() -> None:
    with pytest.raises(ModelLoadError, match=r"'cpu' runs on cpu, not on cuda"):
        select_backend("cpu", "cuda")
