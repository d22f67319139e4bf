"""Products of one row against the same in float64, and what their kernels take of a processor."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from engine.cuda.kernels.gemv import gated_matvec, head_matvec, norm_matvec, residual_matvec
from engine.cuda.kernels.gemv_configs import MEASURED, GemvConfig, GemvOperation, gemv_config
from tests.engine.cuda.amounts import pairs, some
from tests.engine.cuda.compiling import compile_kernels, recorded_launches

EPS = 1e-5
FORMS = [torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn]
CUTS: dict[str, tuple[tuple[int, int], GemvConfig]] = {
    "whole rows": ((48, 64), GemvConfig(4, 64)),
    "whole rows with an empty end, and too few for the last tile": ((20, 576), GemvConfig(8, 1024)),
    "two chunks": ((24, 128), GemvConfig(8, 64)),
    "three chunks, the last with an empty end": ((16, 160), GemvConfig(4, 64)),
    "nine chunks": ((16, 576), GemvConfig(2, 64)),
    "five chunks, the last with an empty end, and too few rows": ((14, 288), GemvConfig(4, 64)),
}

TRIED = pairs(list(CUTS), FORMS)


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight as kernels take it, and as it is meant."""

    values: torch.Tensor
    scale: torch.Tensor | None
    exact: torch.Tensor

    @property
    def activations(self) -> torch.dtype:
        """What its kernels read and write."""
        return torch.float32 if self.values.dtype == torch.float32 else torch.bfloat16


def draw_weight(shape: tuple[int, int], form: torch.dtype, device: torch.device) -> Weight:
    """Random numbers; in int8 and fp8 with a scale for each row."""
    drawn = torch.randn(shape) * torch.logspace(-3, 1, shape[0])[torch.randperm(shape[0]), None]
    scale = None
    if form in (torch.int8, torch.float8_e4m3fn):
        scale = drawn.abs().amax(1) / (127 if form == torch.int8 else 448)
        drawn = drawn / scale[:, None]
        drawn = drawn.round() if form == torch.int8 else drawn
    values = drawn.to(form)
    exact = values.double() if scale is None else values.double() * scale.double()[:, None]
    return Weight(values.to(device), None if scale is None else scale.to(device), exact.to(device))


def normed(hidden: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """The norm in float64."""
    return functional.rms_norm(hidden.double(), norm.shape, norm.double(), EPS)


def unwritten(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Outputs that compare unequal to everything until they are written, with guards behind them that must stay so."""
    return torch.full((1, size + 32), float("nan"), dtype=dtype, device=device)


def check(out: torch.Tensor, expected: torch.Tensor) -> None:
    """Compares outputs, to float32 or to what bfloat16 can hold, and that nothing was written behind them."""
    count = expected.shape[1]
    # bfloat16 keeps 8 bits, and the interpreter cuts the others off; 1e-5 of the largest is what sums may differ by
    near = 2**-7 if out.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out[:, :count].double(), expected, rtol=near, atol=1e-5 * expected.abs().max().item())
    assert out[:, count:].isnan().all()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize(("cut", "form"), TRIED, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_normed_product_is_that_of_float64(cut: str, form: torch.dtype, biased: bool, device: torch.device) -> None:
    shape, config = CUTS[cut]
    weight = draw_weight(shape, form, device)
    hidden, norm = 30 * torch.randn(1, shape[1], device=device), torch.rand(shape[1], device=device) + 0.5
    bias = torch.randn(shape[0], device=device).to(weight.activations) if biased else None
    out = unwritten(shape[0], weight.activations, device)
    norm_matvec(hidden, norm, EPS, weight.values, bias, out, config=config, pdl=False, scale=weight.scale)
    expected = normed(hidden, norm) @ weight.exact.T
    check(out, expected if bias is None else expected + bias.double())


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of gates far below zero, which close
@pytest.mark.parametrize(("cut", "form"), TRIED, ids=str)
def test_a_gated_product_is_that_of_float64(cut: str, form: torch.dtype, device: torch.device) -> None:
    shape, config = CUTS[cut]
    weight = draw_weight(shape, form, device)
    hidden, norm = 0.01 * torch.randn(1, shape[1], device=device), torch.rand(shape[1], device=device) + 0.5
    out = unwritten(shape[0] // 2, weight.activations, device)
    gated_matvec(hidden, norm, EPS, weight.values, out, config=config, pdl=False, scale=weight.scale)
    gate, up = (normed(hidden, norm) @ weight.exact.T).chunk(2, -1)
    check(out, functional.silu(gate) * up)


@pytest.mark.parametrize(("cut", "form"), TRIED, ids=str)
def test_a_residual_product_is_added_as_in_float64(cut: str, form: torch.dtype, device: torch.device) -> None:
    shape, config = CUTS[cut]
    weight = draw_weight(shape, form, device)
    x = torch.randn(1, shape[1], device=device).to(weight.activations)
    hidden = unwritten(shape[0], torch.float32, device)
    hidden[:, : shape[0]] = torch.randn(1, shape[0], device=device)
    expected = hidden[:, : shape[0]].double() + x.double() @ weight.exact.T
    residual_matvec(x, weight.values, hidden, config=config, pdl=False, scale=weight.scale)
    check(hidden, expected)


@pytest.mark.parametrize(("programs", "form"), pairs([1, 3, 100], FORMS), ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (45, 160)])
def test_logits_are_those_of_float64_however_many_programs_share_the_rows(
    shape: tuple[int, int], programs: int, form: torch.dtype, device: torch.device
) -> None:
    weight = draw_weight(shape, form, device)
    hidden, norm = torch.randn(1, shape[1], device=device), torch.rand(shape[1], device=device) + 0.5
    logits = unwritten(shape[0], torch.float32, device)
    config = GemvConfig(4, 64, programs=programs)
    head_matvec(hidden, norm, EPS, weight.values, logits, config=config, pdl=False, scale=weight.scale)
    check(logits, normed(hidden, norm) @ weight.exact.T)


def test_every_number_of_fp8_and_int8_is_read_exactly(device: torch.device) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    finite = torch.where((codes & 127) == 127, 0, codes)  # both NaN of e4m3 left out
    for values in (finite.view(torch.float8_e4m3fn), codes.view(torch.int8)):
        weight, one = values.reshape(64, 4).to(device), torch.ones(64, device=device)
        for place in range(4):
            x = functional.one_hot(torch.tensor([place]), 4).to(device, torch.bfloat16)
            out = torch.zeros(1, 64, device=device)
            residual_matvec(x, weight, out, config=GemvConfig(64, 4), pdl=False, scale=one)
            assert torch.equal(out[0], weight[:, place].float())


def test_norm_weights_may_be_of_the_type_of_the_weight(device: torch.device) -> None:
    weight = draw_weight((16, 64), torch.bfloat16, device)
    hidden, norm = torch.randn(1, 64, device=device), torch.rand(64, device=device).to(torch.bfloat16)
    out = unwritten(16, torch.bfloat16, device)
    norm_matvec(hidden, norm, EPS, weight.values, None, out, config=GemvConfig(4, 64), pdl=False)
    check(out, normed(hidden, norm) @ weight.exact.T)


Shape = tuple[GemvOperation, int, int]

LARGE: list[Shape] = [
    *(("norm", 6144, 4096), ("gated", 34816, 5120), ("residual", 4096, 14336), ("head", 128256, 4096))
]
SMALL: list[Shape] = [
    *(("norm", 960, 576), ("residual", 576, 1536), ("gated", 128, 64), ("head", 49152, 576), ("norm", 3072, 2048))
]
COMPILED: list[tuple[Shape, torch.dtype]] = [
    *((shape, torch.bfloat16) for shape in [*MEASURED, *some(SMALL, SMALL[:2])]),
    *pairs(LARGE, some(FORMS, FORMS[1:])),
]


def launch_on_nothing(operation: GemvOperation, outputs: int, inputs: int, form: torch.dtype) -> None:
    """Calls a function with tensors that have no memory, cut as it would be."""
    weight = torch.empty(outputs, inputs, dtype=form, device="meta")
    config = gemv_config(operation, weight)
    scale = torch.empty(outputs, device="meta") if form.itemsize == 1 else None
    x = torch.empty(1, inputs, dtype=torch.float32 if form == torch.float32 else torch.bfloat16, device="meta")
    hidden, norm, out = x.float(), torch.empty(inputs, device="meta"), torch.empty(1, outputs, device="meta")
    activations = out.to(x.dtype)
    if operation == "norm":
        norm_matvec(hidden, norm, EPS, weight, activations[0], activations, config=config, pdl=True, scale=scale)
    elif operation == "gated":
        gated_matvec(hidden, norm, EPS, weight, activations, config=config, pdl=True, scale=scale)
    elif operation == "residual":
        residual_matvec(x, weight, out, config=config, pdl=True, scale=scale)
    else:
        head_matvec(hidden, norm, EPS, weight, out, config=config, pdl=True, scale=scale)


def test_no_choice_needs_more_registers_than_a_thread_has() -> None:
    with recorded_launches() as launches:
        for shape, form in COMPILED:
            launch_on_nothing(*shape, form)
    facts = dict(zip(COMPILED, compile_kernels(launches), strict=True))
    assert {request: found for request, found in facts.items() if found.spills} == {}
    assert all(0 < found.registers <= 255 for found in facts.values())
