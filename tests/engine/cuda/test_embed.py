"""The first kernel of a step looks up what each lane computes."""

from __future__ import annotations

import pytest
import torch

from engine.cuda.kernels.embed import embed
from engine.ops.reference import rms_norm

EPS = 1e-6

GIVEN = [-1, 5, -1, -1, 49]
ROWS = [2, 0, 3, -1, -1]
LAST = [7, 8, 9, 10]
MEANT = [9, 5, 10, None, 49]
"""What each lane embeds: a token given, or else the newest of its row, or else nothing."""


def lanes(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = torch.tensor(GIVEN, dtype=torch.int32, device=device)
    rows = torch.tensor(ROWS, dtype=torch.int32, device=device)
    return given, rows, torch.tensor(LAST, device=device)


def meant(embedding: torch.Tensor) -> torch.Tensor:
    rows = [torch.zeros_like(embedding[0]) if token is None else embedding[token] for token in MEANT]
    return torch.stack(rows).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "parts"), [(64, 1), (576, 9), (1024, 16)])
def test_the_stream_begins_with_the_norm_prepared(
    device: torch.device, size: int, parts: int, dtype: torch.dtype
) -> None:
    embedding, norm = torch.randn(50, size, device=device).to(dtype), torch.rand(size, device=device) + 0.5
    given, rows, last_tokens = lanes(device)
    hidden = torch.full((8, size), 7.0, device=device)
    normed = torch.full((8, size), 7.0, dtype=dtype, device=device)
    squares = torch.full((8, parts), 7.0, device=device)

    embed(
        given,
        embedding,
        norm,
        hidden,
        normed,
        squares,
        rows=rows,
        last_tokens=last_tokens,
        num_lanes=5,
        pdl=False,
    )

    expected = meant(embedding)
    assert torch.equal(hidden[:5], expected)
    scaled = normed[:5].float() * torch.rsqrt(squares[:5].sum(1, keepdim=True) / size + EPS)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(scaled, rms_norm(expected, norm, EPS), rtol=tolerance, atol=tolerance)
    assert (hidden[5:] == 7).all()
    assert (normed[5:] == 7).all()
    assert (squares[5:] == 7).all()


def test_without_a_norm_only_the_stream_is_written(device: torch.device) -> None:
    embedding = torch.randn(50, 576, device=device).bfloat16()
    given, rows, last_tokens = lanes(device)
    hidden = torch.empty(5, 576, device=device)

    embed(given, embedding, None, hidden, None, None, rows=rows, last_tokens=last_tokens, num_lanes=5, pdl=False)

    assert torch.equal(hidden, meant(embedding))


def test_a_norm_without_room_is_refused(device: torch.device) -> None:
    embedding, norm = torch.randn(50, 64, device=device), torch.rand(64, device=device)
    given, rows, last_tokens = lanes(device)
    hidden = torch.empty(5, 64, device=device)

    with pytest.raises(ValueError, match="squares"):
        embed(given, embedding, norm, hidden, None, None, rows=rows, last_tokens=last_tokens, num_lanes=5, pdl=False)
    with pytest.raises(ValueError, match="at least 6 rows"):
        embed(given, embedding, None, hidden, None, None, rows=rows, last_tokens=last_tokens, num_lanes=6, pdl=False)
