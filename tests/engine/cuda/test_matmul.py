"""The products of a few lanes agree with norm, product, gate and residual as they are meant."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.cuda.kernels.matmul import gated_matmul, head_matmul, normed_matmul, residual_matmul
from engine.cuda.kernels.matmul_configs import MatmulConfig, Operation, choose_matmul, parts_of
from engine.ops.reference import gated_silu, rms_norm
from tests.engine.cuda.amounts import pairs, some
from tests.engine.cuda.compiling import SHARED_LIMIT, compile_kernels, recorded_launches

EPS = 1e-5

CUTS = [
    MatmulConfig(16, 32),
    MatmulConfig(64, 64, prefetch="l2"),
    MatmulConfig(16, 64, k_slices=2, prefetch="registers"),
    MatmulConfig(16, 64, k_slices=4, split_k=2, prefetch="registers"),
    MatmulConfig(32, 64, split_k=3, num_stages=2, unrolled=False),
]
"""Each way to cut K; with 576 columns some of them leave the last step partly empty."""

DTYPES = [torch.float32, torch.bfloat16]

TRIED = some(
    pairs(CUTS, DTYPES),
    [*((config, torch.bfloat16) for config in CUTS), (CUTS[0], torch.float32), (CUTS[3], torch.float32)],
)
"""Cuts and types of numbers; float32 with the plainest cut and that which has most to it."""

OPERATIONS: tuple[Operation, ...] = ("qkv", "output", "gate_up", "down", "head")

LARGE: list[tuple[Operation, int, int, int, torch.dtype]] = [
    ("qkv", 4096, 1024, 8, torch.bfloat16),
    ("output", 4096, 4096, 64, torch.bfloat16),
    ("gate_up", 28672, 4096, 64, torch.bfloat16),
    ("down", 1024, 3072, 8, torch.bfloat16),
    ("down", 4096, 14336, 8, torch.bfloat16),
    ("down", 4096, 14336, 64, torch.int8),
    ("gate_up", 28672, 4096, 64, torch.float8_e4m3fn),
    ("output", 64, 64, 64, torch.float32),
]
"""Products, one of each form and of the largest tiles, that must compile for the GPU."""


class Stream:
    """A residual stream as a kernel in front left it."""

    def __init__(self, rows: int, size: int, dtype: torch.dtype, device: torch.device, parts: int = 5) -> None:
        self.hidden = torch.randn(rows, size, device=device)
        self.norm = torch.rand(size, device=device) + 0.5
        self.normed = (self.hidden * self.norm).to(dtype)
        self.squares = torch.zeros(rows, parts, device=device)
        for part, columns in enumerate(self.hidden.chunk(parts, 1)):
            self.squares[:, part] = columns.square().sum(1)

    def expected(self, weight: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(self.hidden.square().mean(1, keepdim=True) + EPS)
        return (self.normed.float() * scale) @ weight.float().T


def random_weight(size: int, inputs: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return (torch.randn(size, inputs, device=device) / math.sqrt(inputs)).to(dtype)


def room(config: MatmulConfig, size: int, rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Workspace full of what would show, and counters."""
    workspace = torch.full((max(1, config.workspace_floats(size, rows)),), torch.nan, device=device)
    return workspace, torch.zeros(config.tiles(size), dtype=torch.int32, device=device)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Float32 to its last bits; bfloat16 to its rounding, which goes towards zero when interpreted."""
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert error < (1e-6 if found.dtype == torch.float32 else 6e-3)


@pytest.mark.parametrize(("config", "dtype"), TRIED)
def test_a_product_takes_the_norm_of_the_stream_and_adds_a_bias(
    device: torch.device, config: MatmulConfig, dtype: torch.dtype
) -> None:
    stream, weight = Stream(8, 576, dtype, device), random_weight(100, 576, dtype, device)
    bias, out = torch.randn(100, device=device).to(dtype), torch.full((8, 100), 7.0, dtype=dtype, device=device)
    workspace, counters = room(config, 100, 8, device)

    normed_matmul(
        stream.normed,
        stream.squares,
        EPS,
        weight,
        bias,
        out,
        num_lanes=5,
        config=config,
        pdl=False,
        workspace=workspace,
        counters=counters,
    )

    close(out[:5], (stream.expected(weight) + bias.float())[:5])
    assert (out[5:] == 7).all()
    assert not counters.any()


@pytest.mark.parametrize(("config", "dtype"), TRIED)
def test_gate_and_up_become_one_output(device: torch.device, config: MatmulConfig, dtype: torch.dtype) -> None:
    stream, weight = Stream(16, 576, dtype, device), random_weight(2 * 50, 576, dtype, device)
    out = torch.empty(16, 50, dtype=dtype, device=device)
    workspace, counters = room(config, 100, 16, device)

    gated_matmul(
        stream.normed,
        stream.squares,
        EPS,
        weight,
        out,
        num_lanes=16,
        config=config,
        pdl=False,
        workspace=workspace,
        counters=counters,
    )

    close(out, gated_silu(stream.expected(weight)))
    assert not counters.any()


@pytest.mark.parametrize(("config", "dtype"), TRIED)
def test_a_product_is_added_to_the_stream_and_the_next_norm_prepared(
    device: torch.device, config: MatmulConfig, dtype: torch.dtype
) -> None:
    rows, size, inputs, num_lanes = 32, 72, 576, 30
    x, weight = torch.randn(rows, inputs, device=device).to(dtype), random_weight(size, inputs, dtype, device)
    hidden, norm = torch.randn(rows, size, device=device), torch.rand(size, device=device) + 0.5
    before = hidden.clone()
    normed = torch.zeros(rows, size, dtype=dtype, device=device)
    squares = torch.zeros(rows, parts_of(config, size), device=device)
    workspace, counters = room(config, size, rows, device)

    residual_matmul(
        x,
        weight,
        hidden,
        norm,
        normed,
        squares,
        workspace,
        counters,
        num_lanes=num_lanes,
        config=config,
        pdl=False,
    )

    expected = before + x.float() @ weight.float().T
    close(hidden[:num_lanes], expected[:num_lanes])
    scale = torch.rsqrt(squares.sum(1, keepdim=True) / size + EPS)
    close((normed.float() * scale)[:num_lanes].to(dtype), rms_norm(expected, norm, EPS)[:num_lanes])
    assert torch.equal(hidden[num_lanes:], before[num_lanes:])
    assert not normed[num_lanes:].any()
    assert not counters.any()


@pytest.mark.parametrize("rows", [8, 64])
def test_logits_are_float32(device: torch.device, rows: int) -> None:
    stream, weight = Stream(rows, 64, torch.bfloat16, device), random_weight(300, 64, torch.bfloat16, device)
    logits = torch.empty(rows, 300, device=device)
    config = choose_matmul("head", 300, 64, rows)

    head_matmul(stream.normed, stream.squares, EPS, weight, logits, num_lanes=rows, config=config, pdl=False)

    close(logits, stream.expected(weight))


@pytest.mark.parametrize("config", some(CUTS, CUTS[::2]))
def test_a_lane_does_not_see_the_others_nor_what_lies_above_them(device: torch.device, config: MatmulConfig) -> None:
    stream, weight = Stream(8, 576, torch.bfloat16, device), random_weight(64, 576, torch.bfloat16, device)
    found = []
    for others in (1.0, 100.0, torch.nan):
        normed, squares = stream.normed.clone(), stream.squares.clone()
        normed[1:] *= others
        squares[1:] *= others
        out = torch.empty(8, 64, dtype=torch.bfloat16, device=device)
        workspace, counters = room(config, 64, 8, device)
        normed_matmul(
            normed,
            squares,
            EPS,
            weight,
            None,
            out,
            num_lanes=2,
            config=config,
            pdl=False,
            workspace=workspace,
            counters=counters,
        )
        found.append(out[0])

    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("config", [CUTS[1], CUTS[3]])
def test_weights_of_eight_bits_are_scaled_by_the_row(
    device: torch.device, config: MatmulConfig, dtype: torch.dtype
) -> None:
    stream = Stream(8, 576, torch.bfloat16, device)
    scale = torch.rand(72, device=device) + 0.1
    x, hidden = torch.randn(8, 576, device=device).bfloat16(), torch.randn(8, 72, device=device)
    before, norm = hidden.clone(), torch.rand(72, device=device)
    weight = (torch.randn(72, 576, device=device) * 30).clamp(-120, 120).to(dtype)
    exact = weight.float() * scale[:, None]
    out, normed = torch.empty(8, 72, device=device), torch.empty(8, 72, device=device).bfloat16()
    workspace, counters = room(config, 72, 8, device)
    squares = torch.empty(8, parts_of(config, 72), device=device)

    normed_matmul(
        stream.normed,
        stream.squares,
        EPS,
        weight,
        None,
        out,
        num_lanes=8,
        config=config,
        pdl=False,
        scale=scale,
        workspace=workspace,
        counters=counters,
    )
    residual_matmul(
        x,
        weight,
        hidden,
        norm,
        normed,
        squares,
        workspace,
        counters,
        num_lanes=8,
        config=config,
        pdl=False,
        scale=scale,
    )

    close(out, stream.expected(exact))
    close(hidden, before + x.float() @ exact.T)


def test_operands_that_do_not_fit_are_refused(device: torch.device) -> None:
    stream, weight = Stream(8, 64, torch.float32, device), random_weight(32, 64, torch.float32, device)
    config, out = MatmulConfig(16, 32, split_k=2), torch.empty(8, 32, device=device)

    def run(weight: torch.Tensor, out: torch.Tensor, config: MatmulConfig, num_lanes: int) -> None:
        normed_matmul(
            stream.normed, stream.squares, EPS, weight, None, out, num_lanes=num_lanes, config=config, pdl=False
        )

    with pytest.raises(ValueError, match="workspace"):
        run(weight, out, config, 8)
    with pytest.raises(ValueError, match="9 lanes"):
        run(weight, out, replace(config, split_k=1), 9)
    with pytest.raises(ValueError, match="64 columns"):
        run(weight[:, :32], out, replace(config, split_k=1), 8)
    with pytest.raises(ValueError, match="out must be"):
        run(weight, out[:, :31], replace(config, split_k=1), 8)


@pytest.mark.parametrize("rows", [8, 16, 32, 64])
@pytest.mark.parametrize("hidden_size", [64, 576, 768, 1024, 1536, 2048, 3584, 4096])
def test_every_shape_gets_a_cut_that_covers_it(rows: int, hidden_size: int) -> None:
    for inputs in (hidden_size, 96, 1536, 3 * hidden_size, 8192, 14336):
        for operation in OPERATIONS:
            config = choose_matmul(operation, hidden_size, inputs, rows)
            step = config.block_k * config.k_slices
            assert config.steps(inputs) * config.split_k * step >= inputs
            assert (config.steps(inputs) * config.split_k - 1) * step < inputs, "a program would have nothing to do"
            tile_bytes = 2 * step * (config.block_n + config.lanes(rows, torch.bfloat16))
            assert tile_bytes * config.num_stages <= SHARED_LIMIT


def launch_on_nothing(operation: Operation, size: int, inputs: int, rows: int, dtype: torch.dtype) -> None:
    """Calls a product with tensors that have no memory, cut as it would be."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    kind = torch.float32 if dtype == torch.float32 else torch.bfloat16
    config = choose_matmul(operation, size, inputs, rows, dtype)
    x, weight = empty(rows, inputs, dtype=kind), empty(size, inputs, dtype=dtype)
    hidden, normed, norm = empty(rows, size), empty(rows, size, dtype=kind), empty(size)
    scale = empty(size) if dtype.itemsize == 1 else None
    workspace, counters = empty(config.workspace_floats(size, rows)), empty(config.tiles(size), dtype=torch.int32)
    squares = empty(rows, inputs // 64)
    if operation == "gate_up":
        out = normed[:, : size // 2]
        gated_matmul(x, squares, EPS, weight, out, num_lanes=rows, config=config, pdl=True, scale=scale)
    elif operation == "head":
        head_matmul(x, squares, EPS, weight, hidden, num_lanes=rows, config=config, pdl=True, scale=scale)
    elif operation == "qkv":
        normed_matmul(x, squares, EPS, weight, norm, normed, num_lanes=rows, config=config, pdl=True, scale=scale)
    else:
        squares = empty(rows, parts_of(config, size))
        residual_matmul(
            x,
            weight,
            hidden,
            norm,
            normed,
            squares,
            workspace,
            counters,
            num_lanes=rows,
            config=config,
            pdl=True,
            scale=scale,
        )


def test_no_choice_needs_more_registers_or_memory_than_there_are() -> None:
    with recorded_launches() as launches:
        for shape in LARGE:
            launch_on_nothing(*shape)
    for shape, found in zip(LARGE, compile_kernels(launches), strict=True):
        assert found.spills == 0, shape
        assert 0 < found.shared_bytes <= SHARED_LIMIT, shape
