"""Attention's kernels fit a processor: few spilled registers, and no more shared memory than there is."""

from __future__ import annotations

import torch

from engine.attention.triton import tile_config
from engine.cuda.kernels.attention_config import choose_attention
from engine.cuda.kernels.codes import KVCodes
from engine.cuda.kernels.decode_attention import decode_attention
from engine.cuda.kernels.paged_attention import PIECE_FIELDS, Pieces, paged_attention
from engine.cuda.kernels.rows import rotate_store
from engine.cuda.kernels.shared_memory import fitting_tiles
from engine.kv.storage import KVStorage
from engine.quantization.formats import FORMATS
from tests.engine.cuda.compiling import SHARED_LIMIT, compile_kernels, recorded_launches

H, G, D, S = 16, 8, 128, 16
MOST_SPILLED = 16


def unset(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def codes_of(name: str) -> tuple[torch.Tensor, KVCodes | None]:
    """K and V of a layer, and what belongs to them."""
    if name == "bfloat16":
        return unset(2, 9, S, G, D), None
    kind, channels = FORMATS[name], unset(G, D, dtype=torch.float32)
    pairs = unset(2, 9, G, S // 2, dtype=torch.int32)
    codes = KVCodes(unset(2, 9, G, S), pairs, channels, channels, kind.most, kind.dtype == torch.int8)
    return unset(2, 9, S, G, D, dtype=kind.dtype), codes


def launch_decode(width: int, name: str = "bfloat16", *, window: int | None = None) -> None:
    kv, codes = codes_of(name)
    integers, angles, norm = unset(width, dtype=torch.int32), unset(64, D // 2, dtype=torch.float32), unset(D)
    scratch = unset(99, dtype=torch.float32)
    decode_attention(
        unset(width, (H + 2 * G) * D),
        integers,
        integers,
        unset(width, 64, dtype=torch.int32),
        kv,
        angles,
        angles,
        norm,
        norm,
        1e-6,
        0.1,
        window,
        scratch,
        scratch,
        integers,
        unset(width, H * D),
        num_lanes=width,
        config=choose_attention(width, 512, H, G),
        pdl=True,
        codes=codes,
    )


def launch_prefill(name: str = "bfloat16") -> None:
    kv, codes = codes_of(name)
    storage = KVStorage(
        num_layers=1,
        num_pages=9,
        page_size=S,
        num_kv_heads=G,
        head_dim=D,
        dtype=kv.dtype,
        device=torch.device("meta"),
    )
    pieces = Pieces(fields=unset(64, PIECE_FIELDS, dtype=torch.int32), pages=unset(99, dtype=torch.int32))
    config = tile_config(3, 16, H // G, storage, 132)
    assert (config.rows, config.block) == (128, 128 if codes is None else 64)
    query, counters = unset(64, H, D), unset(G, dtype=torch.int32)
    paged_attention(query, kv, pieces, counters, 0.1, None, query, config=config, codes=codes)


def launch_dense_rows() -> None:
    """Keys and values that are wanted as rows too, some behind the step's."""
    kv, _ = codes_of("bfloat16")
    integers, angles = unset(64, dtype=torch.int32), unset(64, D // 2, dtype=torch.float32)
    for targets in (None, unset(64, dtype=torch.int64)):
        rotate_store(
            *(unset(64, (H + 2 * G) * D), integers, integers, angles, angles, None, 1e-6),
            *(kv.view(2, -1, G, D), unset(64 if targets is None else 128, H, D)),
            targets=targets,
            dense_key=unset(64, G, D),
            dense_value=None if targets is None else unset(64, G, D),
        )


def launch_rows(name: str) -> None:
    kv, codes = codes_of(name)
    integers, angles = unset(64, dtype=torch.int32), unset(64, D // 2, dtype=torch.float32)
    norms, query = unset(H + G, D, dtype=torch.float32), unset(64, H, D)
    pages = kv.view(2, -1, G, D)
    rotate_store(unset(64, (H + 2 * G) * D), integers, integers, angles, angles, norms, 1e-6, pages, query, codes)


def test_kernels_of_steps_and_prompts_fit_the_h200() -> None:
    with recorded_launches() as requests:
        launch_decode(1)
        launch_decode(64)
        launch_decode(8, window=1)
        launch_prefill()
        launch_dense_rows()
    assert len(requests) == 6
    for facts in compile_kernels(requests):
        assert facts.spills <= MOST_SPILLED
        assert facts.shared_bytes <= SHARED_LIMIT


def test_kernels_that_read_and_write_codes_fit_the_h200() -> None:
    with recorded_launches() as requests:
        launch_decode(1, "fp8")
        launch_decode(64, "int8")
        launch_prefill("int8")
        launch_rows("fp8")
    assert len(requests) == 4
    for facts in compile_kernels(requests):
        assert facts.spills <= MOST_SPILLED
        assert facts.shared_bytes <= SHARED_LIMIT


def test_tiles_become_fewer_and_then_smaller_until_they_fit() -> None:
    device = torch.device("cpu")
    assert fitting_tiles(64, 256, 3, device) == (64, 3)
    assert fitting_tiles(64, 1024, 3, device) == (64, 1)
    assert fitting_tiles(128, 2048, 2, device) == (32, 1)
