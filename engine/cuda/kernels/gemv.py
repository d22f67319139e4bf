"""Products of one row with a matrix, with what stands before and after them in a decoder; bound by reading weights.

Letters: E hidden_size, N outputs, K inputs, I intermediate_size, V vocabulary.

Each program takes a tile of rows of the weight, in one go or in chunks along K. What depends on weights alone is loaded
before the wait for the kernel in front, so that reading them fills the time in which that one ends. The norm is not
applied beforehand: every program adds up the squares of its inputs, and scales its sums by the result.

Weights are contiguous [N, K] in bfloat16, float32, int8 or float8_e4m3fn; the last two with a float32 `scale` [N] of
their rows. K times the size of a number must be a whole number of 32-bit words.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.gemv_configs import GemvConfig
from engine.cuda.kernels.pdl import launch_dependents, wait
from engine.cuda.kernels.words import FORMS, as_pairs, as_words, load_numbers, load_words, multiply_words, scale_sums

__all__ = ["gated_matvec", "head_matvec", "norm_matvec", "residual_matvec"]


def norm_matvec(
    hidden: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    config: GemvConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Computes `out = rms_norm(hidden) @ weight.T + bias`.

    Args:
        hidden: [1, E] float32.
        norm: [E].
        eps: Of the norm.
        weight: [N, E].
        bias: [N].
        out: [1, N], written.
        config: How it is cut.
        pdl: Start before the kernel in front has ended.
        scale: [N] float32, of an int8 or fp8 weight.
    """
    _launch(hidden, norm, eps, weight, scale, bias, out, "plain", config, pdl)


def gated_matvec(
    hidden: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    config: GemvConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Computes `out = silu(gate) * up`, where `gate` and `up` are the halves of `rms_norm(hidden) @ weight.T`.

    Args:
        hidden: [1, E] float32.
        norm: [E].
        eps: Of the norm.
        weight: [2I, E], rows of gate, then of up.
        out: [1, I], written.
        config: How it is cut.
        pdl: Start before the kernel in front has ended.
        scale: [2I] float32, of an int8 or fp8 weight.
    """
    _launch(hidden, norm, eps, weight, scale, None, out, "gated", config, pdl)


def residual_matvec(
    x: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    *,
    config: GemvConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Computes `hidden += x @ weight.T`.

    Args:
        x: [1, K].
        weight: [E, K].
        hidden: [1, E] float32, added to.
        config: How it is cut.
        pdl: Start before the kernel in front has ended.
        scale: [E] float32, of an int8 or fp8 weight.
    """
    _launch(x, None, 0.0, weight, scale, None, hidden, "residual", config, pdl)


def head_matvec(
    hidden: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    logits: torch.Tensor,
    *,
    config: GemvConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Computes `logits = rms_norm(hidden) @ weight.T` for many rows, a few tiles in turn in each program.

    Args:
        hidden: [1, E] float32.
        norm: [E].
        eps: Of the norm.
        weight: [V, E].
        logits: [1, V] float32, written.
        config: How it is cut; rows are taken whole.
        pdl: Start before the kernel in front has ended.
        scale: [V] float32, of an int8 or fp8 weight.
    """
    outputs, inputs = weight.shape
    words, row_words, numbers = as_words(weight)
    programs = min(config.programs, triton.cdiv(outputs, config.rows))
    _head_kernel[(programs,)](
        *(as_pairs(hidden, numbers), as_pairs(norm, numbers), eps, words, scale, logits),
        PROGRAMS=programs,
        N=outputs,
        K=inputs,
        WORDS=row_words,
        NUMBERS=numbers,
        ROWS=config.rows,
        BLOCK=triton.next_power_of_2(row_words),
        FORM=FORMS[weight.dtype],
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )


def _launch(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    epilogue: str,
    config: GemvConfig,
    pdl: bool,
) -> None:
    outputs, inputs = weight.shape
    words, row_words, numbers = as_words(weight)
    gains = None if norm is None else as_pairs(norm, numbers)
    _matvec_kernel[(triton.cdiv(outputs, config.rows),)](
        *(as_pairs(x, numbers), gains, eps, words, scale, bias, out),
        N=outputs,
        K=inputs,
        WORDS=row_words,
        NUMBERS=numbers,
        ROWS=config.rows,
        BLOCK=min(config.block_k // numbers, triton.next_power_of_2(row_words)),
        FORM=FORMS[weight.dtype],
        EPILOGUE=epilogue,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )


@triton.jit
def _matvec_kernel(
    x_pointer,
    norm_pointer,
    eps,
    words_pointer,
    scale_pointer,
    bias_pointer,
    out_pointer,
    N: tl.constexpr,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FORM: tl.constexpr,
    EPILOGUE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of rows; chunks of it are loaded two ahead of their use, or all at once if they are few."""
    CHUNKS: tl.constexpr = (WORDS + BLOCK - 1) // BLOCK
    AHEAD: tl.constexpr = CHUNKS if CHUNKS <= 4 else 2
    index = tl.program_id(0)
    row = _tile_rows(index, N, ROWS, EPILOGUE)
    tiles = _load_tiles(words_pointer, row, AHEAD, WORDS, BLOCK)
    if norm_pointer is not None:
        gains = load_numbers(norm_pointer, 0, WORDS, BLOCK, NUMBERS)
    if scale_pointer is not None:
        scale = tl.load(scale_pointer + row)
    if bias_pointer is not None:
        bias = tl.load(bias_pointer + row).to(tl.float32)
    wait(PDL)
    launch_dependents(PDL)

    if EPILOGUE == "residual":
        output = index * ROWS + tl.arange(0, ROWS)
        residual = tl.load(out_pointer + output, mask=output < N, other=0.0, cache_modifier=".cg")
    inputs = load_numbers(x_pointer, 0, WORDS, BLOCK, NUMBERS)
    squares = _squares(inputs)
    if norm_pointer is not None:
        inputs = _scaled(inputs, gains)
    products = multiply_words(tiles[0], inputs, FORM)
    if CHUNKS == AHEAD:
        for chunk in tl.static_range(1, CHUNKS):
            inputs, more = _load_scaled(x_pointer, norm_pointer, chunk, WORDS, BLOCK, NUMBERS)
            squares += more
            products += multiply_words(tiles[chunk], inputs, FORM)
    else:
        tile = tiles[1]
        next_tile = load_words(words_pointer, row, 2, WORDS, BLOCK)
        for chunk in tl.range(1, CHUNKS):
            later = load_words(words_pointer, row, tl.minimum(chunk + 2, CHUNKS - 1), WORDS, BLOCK)
            inputs, more = _load_scaled(x_pointer, norm_pointer, chunk, WORDS, BLOCK, NUMBERS)
            squares += more
            products += multiply_words(tile, inputs, FORM)
            tile = next_tile
            next_tile = later

    sums = scale_sums(tl.sum(products, 1), FORM)
    if norm_pointer is not None:
        sums *= tl.rsqrt(tl.sum(squares) / K + eps)
    if scale_pointer is not None:
        sums *= scale
    if bias_pointer is not None:
        sums += bias
    if EPILOGUE == "residual":
        sums += residual
    _store_sums(out_pointer, sums, index, N, ROWS, EPILOGUE)


@triton.jit
def _head_kernel(
    hidden_pointer,
    norm_pointer,
    eps,
    words_pointer,
    scale_pointer,
    logits_pointer,
    PROGRAMS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    NUMBERS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Every `PROGRAMS`-th tile of whole rows, loaded two ahead of their use; the inputs are read once."""
    TILES: tl.constexpr = (N + ROWS - 1) // ROWS
    TURNS: tl.constexpr = (TILES + PROGRAMS - 1) // PROGRAMS
    first = tl.program_id(0)
    tile = load_words(words_pointer, _tile_rows(first, N, ROWS, "plain"), 0, WORDS, BLOCK)
    row = _tile_rows(tl.minimum(first + PROGRAMS, TILES - 1), N, ROWS, "plain")
    next_tile = load_words(words_pointer, row, 0, WORDS, BLOCK)
    gains = load_numbers(norm_pointer, 0, WORDS, BLOCK, NUMBERS)
    wait(PDL)
    launch_dependents(PDL)

    inputs = load_numbers(hidden_pointer, 0, WORDS, BLOCK, NUMBERS)
    rstd = tl.rsqrt(tl.sum(_squares(inputs)) / K + eps)
    inputs = _scaled(inputs, gains)
    for turn in tl.range(0, TURNS):  # behind the last tile it is taken again, and its sums are dropped
        index = first + turn * PROGRAMS
        row = _tile_rows(tl.minimum(index + 2 * PROGRAMS, TILES - 1), N, ROWS, "plain")
        later = load_words(words_pointer, row, 0, WORDS, BLOCK)
        sums = scale_sums(tl.sum(multiply_words(tile, inputs, FORM), 1), FORM) * rstd
        if scale_pointer is not None:
            sums *= tl.load(scale_pointer + _tile_rows(tl.minimum(index, TILES - 1), N, ROWS, "plain"))
        _store_sums(logits_pointer, sums, index, N, ROWS, "plain")
        tile = next_tile
        next_tile = later


@triton.jit
def _tile_rows(index, N: tl.constexpr, ROWS: tl.constexpr, EPILOGUE: tl.constexpr):
    """Rows of a tile: neighbours, or gate and up in turn; behind the end the last one again, whose sums are dropped."""
    offset = tl.arange(0, ROWS)
    if EPILOGUE == "gated":
        row = tl.minimum(index * (ROWS // 2) + offset // 2, N // 2 - 1) + offset % 2 * (N // 2)
    elif N % ROWS == 0:
        row = index * ROWS + offset
    else:
        row = tl.minimum(index * ROWS + offset, N - 1)
    return row


@triton.jit
def _load_tiles(pointer, row, COUNT: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """The first chunks of a tile."""
    tiles = (load_words(pointer, row, 0, WORDS, BLOCK),)
    for chunk in tl.static_range(1, COUNT):
        tiles += (load_words(pointer, row, chunk, WORDS, BLOCK),)  # type: ignore[assignment]  # grows as it is unrolled
    return tiles


@triton.jit
def _load_scaled(pointer, norm_pointer, chunk, WORDS: tl.constexpr, BLOCK: tl.constexpr, NUMBERS: tl.constexpr):
    """Inputs of a chunk, times the norm's weights if there are any, and what their squares add up to."""
    inputs = load_numbers(pointer, chunk, WORDS, BLOCK, NUMBERS)
    squares = _squares(inputs)
    if norm_pointer is not None:
        inputs = _scaled(inputs, load_numbers(norm_pointer, chunk, WORDS, BLOCK, NUMBERS))
    return inputs, squares


@triton.jit
def _squares(inputs):
    """Sum of the squares of the numbers of each word."""
    squares = inputs[0] * inputs[0]
    for number in tl.static_range(1, len(inputs)):
        squares += inputs[number] * inputs[number]
    return squares


@triton.jit
def _scaled(inputs, gains):
    """Inputs times the norm's weights."""
    if len(inputs) == 1:
        return (inputs[0] * gains[0],)
    elif len(inputs) == 2:
        return (inputs[0] * gains[0], inputs[1] * gains[1])
    else:
        return (inputs[0] * gains[0], inputs[1] * gains[1], inputs[2] * gains[2], inputs[3] * gains[3])


@triton.jit
def _store_sums(pointer, sums, index, N: tl.constexpr, ROWS: tl.constexpr, EPILOGUE: tl.constexpr):
    """Writes the outputs of a tile."""
    if EPILOGUE == "gated":
        gate, up = tl.split(tl.reshape(sums, [ROWS // 2, 2]))
        output = index * (ROWS // 2) + tl.arange(0, ROWS // 2)
        sums = gate / (1.0 + tl.exp(-gate)) * up
        inside = output < N // 2
    else:
        output = index * ROWS + tl.arange(0, ROWS)
        inside = output < N
    tl.store(pointer + output, sums.to(pointer.dtype.element_ty), mask=inside)
