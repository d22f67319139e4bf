"""Attention's kernels fit a processor: few spilled registers, and no more shared memory than there is."""

from __future__ import annotations

import torch

from engine.attention.triton import tile_config
from engine.cuda.kernels.attention_config import choose_attention
from engine.cuda.kernels.decode_attention import decode_attention
from engine.cuda.kernels.paged_attention import PIECE_FIELDS, Pieces, paged_attention
from engine.cuda.kernels.shared_memory import fitting_tiles
from engine.kv.storage import KVStorage
from tests.engine.cuda.compiling import SHARED_LIMIT, compile_kernels, recorded_launches

H, G, D, S = 16, 8, 128, 16
MOST_SPILLED = 16


def unset(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch_decode(width: int) -> None:
    integers, angles, norm = unset(width, dtype=torch.int32), unset(64, D // 2, dtype=torch.float32), unset(D)
    scratch = unset(99, dtype=torch.float32)
    decode_attention(
        unset(width, (H + 2 * G) * D),
        integers,
        integers,
        unset(width, 64, dtype=torch.int32),
        unset(2, 9, S, G, D),
        angles,
        angles,
        norm,
        norm,
        1e-6,
        0.1,
        None,
        scratch,
        scratch,
        integers,
        unset(width, H * D),
        num_lanes=width,
        config=choose_attention(width, 512, H, G),
        pdl=True,
    )


def launch_prefill() -> None:
    storage = KVStorage(
        num_layers=1,
        num_pages=9,
        page_size=S,
        num_kv_heads=G,
        head_dim=D,
        dtype=torch.bfloat16,
        device=torch.device("meta"),
    )
    pieces = Pieces(fields=unset(64, PIECE_FIELDS, dtype=torch.int32), pages=unset(99, dtype=torch.int32))
    config = tile_config(3, 16, H // G, storage, 132)
    assert (config.rows, config.block) == (128, 128)
    query, counters = unset(64, H, D), unset(G, dtype=torch.int32)
    paged_attention(query, storage.layers[0], pieces, counters, 0.1, None, query, config=config)


def test_kernels_of_steps_and_prompts_fit_the_h200() -> None:
    with recorded_launches() as requests:
        launch_decode(1)
        launch_decode(64)
        launch_prefill()
    assert len(requests) == 3
    for facts in compile_kernels(requests):
        assert facts.spills <= MOST_SPILLED
        assert facts.shared_bytes <= SHARED_LIMIT


def test_tiles_become_fewer_and_then_smaller_until_they_fit() -> None:
    device = torch.device("cpu")
    assert fitting_tiles(64, 256, 3, device) == (64, 3)
    assert fitting_tiles(64, 1024, 3, device) == (64, 1)
    assert fitting_tiles(128, 2048, 2, device) == (32, 1)
