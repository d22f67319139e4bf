"""Kernels between bfloat16 and one byte a number: what torch says they should write."""

from __future__ import annotations

import pytest
import torch

from engine.cuda.kernels.bytes import dequantize, round_rows
from engine.quantization.formats import FORMATS
from engine.quantization.matrix import quantize
from tests.engine.cuda.compiling import CompileRequest, compile_kernels

by_format = pytest.mark.parametrize("name", FORMATS)


def rows_of(num_rows: int, width: int, device: torch.device) -> torch.Tensor:
    rows = torch.randn((num_rows, width), generator=torch.Generator().manual_seed(width)).bfloat16()
    rows[1] = 0
    return rows.to(device)


@by_format
@pytest.mark.parametrize("width", [64, 576, 5000])
def test_a_matrix_is_dequantized_as_its_rows_say(name: str, width: int, device: torch.device) -> None:
    matrix = quantize(rows_of(6, width, device), FORMATS[name])
    exact = torch.empty(matrix.values.shape, dtype=torch.float32, device=device)
    dequantize(matrix.values, matrix.scale, exact)
    assert torch.equal(exact, matrix.dequantized())
    rounded = torch.empty(matrix.values.shape, dtype=torch.bfloat16, device=device)
    dequantize(matrix.values, matrix.scale, rounded)
    # Interpreted, bfloat16 is cut off instead of rounded.
    torch.testing.assert_close(rounded.float(), exact, atol=0, rtol=2**-8 if device.type == "cuda" else 2**-7)


@by_format
@pytest.mark.parametrize("width", [64, 576])
def test_rows_are_rounded_as_matrices_are(name: str, width: int, device: torch.device) -> None:
    rows = rows_of(6, width, device)
    expected = quantize(rows, FORMATS[name])
    codes, scale = torch.empty_like(expected.values), torch.empty_like(expected.scale)
    round_rows(rows, codes, scale)
    torch.testing.assert_close(scale, expected.scale, atol=0, rtol=1e-6)
    steps = (codes.view(torch.uint8).int() - expected.values.view(torch.uint8).int()).abs()
    if name == "fp8" and device.type != "cuda":
        # Interpreted, a conversion to fp8 loses the carry of what is rounded up to a power of two.
        assert (steps == 0).float().mean() > 0.9
        return
    # A last bit of a scale may turn a tie the other way.
    assert steps.max() <= 1
    assert (steps > 0).float().mean() < 0.01


def test_they_compile_for_the_card_without_spilling() -> None:
    requests = []
    for element, most, whole in (("i8", 127.0, True), ("fp8e4nv", 448.0, False)):
        signature = {"rows_ptr": "*bf16", "codes_ptr": f"*{element}", "scale_ptr": "*fp32", "K": "i32"}
        constants = {"MOST": most, "WHOLE": whole, "BLOCK": 16384}
        requests.append(CompileRequest("engine.cuda.kernels.bytes:_round_rows", signature, constants, num_warps=8))
    assert [facts.spills for facts in compile_kernels(requests)] == [0, 0]
