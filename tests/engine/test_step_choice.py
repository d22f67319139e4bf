"""What computes a step: the settings' wish, the machine's means, and the words for why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import step_choice
from engine.config import EngineConfig, KVConfig, KVFormat, WeightFormat
from engine.cuda.status import CudaStatus
from engine.errors import ModelLoadError
from engine.models.shapes import SHAPES
from engine.native.library import NativeStatus, native_module
from engine.quantization.formats import FORMATS
from engine.resolve import place
from engine.step_choice import choose_step

CPU = torch.device("cpu")
HERE = NativeStatus(True, "", ("avx512", "avx2"), "avx512")
GONE = NativeStatus(False, "it was not built: no C++ compiler was found")


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> list[NativeStatus]:
    """What there is of the native step; a test may replace the one entry."""
    current = [HERE]
    monkeypatch.setattr(step_choice, "native_status", lambda: current[0])
    return current


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(model="", **fields)


@pytest.mark.parametrize("fields", [{}, {"weights": "bfloat16"}, {"weights": "int8"}, {"step": "native"}])
def test_a_cpu_takes_the_native_step_where_it_is_available(status: list[NativeStatus], fields: dict[str, Any]) -> None:
    choice = choose_step(config(**fields), CPU)
    assert (choice.step, choice.form, choice.is_fallback) == ("native", "avx512", False)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weights": "float32"}, "float32 was asked for"),
        ({"attention": "sdpa"}, "attention 'sdpa' was asked for"),
        ({"kv": KVConfig(dtype="float32")}, "its K and V are bfloat16"),
        ({"kv": KVConfig(dtype="int8")}, "its K and V are bfloat16, and int8 was asked for"),
        ({"weights": "fp8"}, "it has weights in bfloat16 and int8, and fp8 was asked for"),
        ({"step": "torch"}, "asked for by name"),
        ({"step": "torch", "weights": "int8"}, "asked for by name"),
    ],
)
def test_a_setting_that_only_torch_can_follow_takes_torch_and_is_no_fallback(
    status: list[NativeStatus], fields: dict[str, Any], reason: str
) -> None:
    choice = choose_step(config(**fields), CPU)
    assert (choice.step, choice.form, choice.is_fallback) == ("torch", None, False)
    assert reason in choice.reason


@pytest.mark.parametrize("found", [CudaStatus(True, "a GPU"), CudaStatus(False, "Triton is not installed")])
def test_a_gpu_takes_its_own_step_where_it_is_available_and_torch_elsewhere(
    monkeypatch: pytest.MonkeyPatch, found: CudaStatus
) -> None:
    monkeypatch.setattr(step_choice, "cuda_status", lambda _device: found)
    choice = choose_step(config(), torch.device("cuda:0"))
    assert (choice.step, choice.is_fallback) == (("cuda", False) if found.available else ("torch", True))
    assert found.reason in choice.reason


def test_without_the_native_step_torch_stands_in_and_the_reason_is_kept(status: list[NativeStatus]) -> None:
    status[0] = GONE
    choice = choose_step(config(), CPU)
    assert (choice.step, choice.is_fallback) == ("torch", True)
    assert choice.reason == "native step not available (it was not built: no C++ compiler was found)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": "native"}, "the native step was asked for, but it is not available: it was not built"),
        ({"weights": "int8"}, "int8 weights need the native step, but it is not available: it was not built"),
    ],
)
def test_what_is_asked_for_and_not_available_stops_the_start(
    status: list[NativeStatus], fields: dict[str, Any], message: str
) -> None:
    status[0] = GONE
    with pytest.raises(ModelLoadError, match=message):
        choose_step(config(**fields), CPU)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": "native", "weights": "fp8"}, "it has weights in bfloat16 and int8, and fp8 was asked for"),
        ({"step": "native", "kv": KVConfig(dtype="fp8")}, "its K and V are bfloat16, and fp8 was asked for"),
        ({"step": "native", "weights": "float32"}, "float32 was asked for"),
        ({"step": "native", "kv": KVConfig(dtype="float32")}, "its K and V are bfloat16"),
        ({"weights": "int8", "attention": "cpu"}, "attention 'cpu' was asked for"),
        ({"weights": "int8", "kv": KVConfig(dtype="float32")}, "its K and V are bfloat16"),
        ({"weights": "int8", "kv": KVConfig(dtype="int8")}, "with --step torch there are int8 weights of another kind"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start(
    status: list[NativeStatus], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        choose_step(config(**fields), CPU)


@pytest.mark.parametrize("weights", ["int8", "fp8"])
def test_a_gpu_keeps_its_step_with_quantized_weights(
    status: list[NativeStatus], weights: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_choice, "cuda_status", lambda _device: CudaStatus(True, "a GPU"))
    assert choose_step(config(weights=weights), torch.device("cuda:0")).step == "cuda"


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_gpu_keeps_its_step_with_quantized_keys_and_values_it_can_convert(
    status: list[NativeStatus], name: KVFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, kv = torch.device("cuda:0"), KVConfig(dtype=name)
    monkeypatch.setattr(step_choice, "cuda_status", lambda _device: CudaStatus(True, "a GPU"))
    assert choose_step(config(kv=kv), device).step == "cuda"
    with pytest.raises(ModelLoadError, match="runs on a CPU, and the device is cuda:0"):
        choose_step(config(step="native", kv=kv), device)
    monkeypatch.setattr(step_choice, "cuda_status", lambda _device: CudaStatus(True, "an A100", has_fp8=False))
    assert choose_step(config(kv=kv), device).step == ("torch" if name == "fp8" else "cuda")
    if name == "fp8":
        with pytest.raises(ModelLoadError, match=r"K and V in fp8 need compute capability 8\.9, and this is an A100"):
            choose_step(config(step="cuda", kv=kv), device)


@pytest.mark.parametrize(
    ("fields", "weights", "kv_dtype"),
    [
        ({}, "bfloat16", torch.bfloat16),
        ({"weights": "int8"}, "int8", torch.bfloat16),
        ({"step": "torch"}, "bfloat16", torch.float32),
        ({"step": "torch", "kv": KVConfig(dtype="bfloat16")}, "bfloat16", torch.bfloat16),
        ({"weights": "float32"}, "float32", torch.float32),
        ({"weights": "fp8"}, "fp8", torch.float32),
        ({"weights": "int8", "step": "torch", "kv": KVConfig(dtype="int8")}, "int8", torch.int8),
        ({"kv": KVConfig(dtype="fp8")}, "bfloat16", torch.float8_e4m3fn),
    ],
)
def test_formats_of_weights_and_pages_follow_the_step(
    status: list[NativeStatus], fields: dict[str, Any], weights: str, kv_dtype: torch.dtype
) -> None:
    placement = place(config(device="cpu", **fields))
    assert (placement.weights, placement.kv_dtype) == (weights, kv_dtype)
    assert placement.quantized_kv == (kv_dtype.itemsize == 1)


def test_quantized_weights_are_torchs_own_unless_the_native_step_has_them(status: list[NativeStatus]) -> None:
    assert place(config(device="cpu", weights="int8")).quantized is None
    for name, fields in {"int8": {"step": "torch"}, "fp8": {}}.items():
        placement = place(config(device="cpu", weights=name, **fields))
        assert placement.quantized == FORMATS[name]
        assert placement.dtype == torch.bfloat16


def test_a_model_of_a_shape_it_cannot_take_is_left_to_torch(status: list[NativeStatus]) -> None:
    if native_module() is None:
        pytest.skip("the native step is not built")
    odd = replace(SHAPES["smollm2-135m"], num_heads=66, num_kv_heads=2)
    choice = choose_step(config(), CPU, odd)
    assert (choice.step, choice.is_fallback) == ("torch", True)
    assert "at most 32 query heads" in choice.reason
    with pytest.raises(ModelLoadError, match="cannot take this model: at most 32 query heads"):
        choose_step(config(step="native"), CPU, odd)
    assert choose_step(config(), CPU, SHAPES["smollm2-135m"]).step == "native"
