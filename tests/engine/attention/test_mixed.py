"""Two backends for one pool: which takes which step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.attention import mixed
from engine.attention.backend import LaneLayout
from engine.attention.mixed import MixedBackend
from engine.attention.sdpa import SdpaBackend
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage

STORAGE = KVStorage(
    num_layers=1, num_pages=8, page_size=8, num_kv_heads=1, head_dim=8, dtype=torch.float32, device=torch.device("cpu")
)


class Other(SdpaBackend):
    """Like the reference, but counted."""

    name = "other"

    def __init__(self) -> None:
        self.num_runs = 0

    def run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.num_runs += 1
        return super().run(*args, **kwargs)


def attend(backend: MixedBackend, num_rows: int, *, masked: bool = False) -> torch.Tensor:
    """One lane of so many tokens, all of them new."""
    layout = LaneLayout(
        query_starts=[0, num_rows],
        context_lens=[num_rows],
        block_tables=[[0, 1, 2]],
        slots=torch.arange(num_rows),
        masks=[torch.ones(num_rows, num_rows, dtype=torch.bool).tril()] if masked else (),
    )
    query = torch.ones(num_rows, 1, 8)
    return backend.run(0, query, STORAGE, backend.plan(layout, STORAGE), scale=1.0, sliding_window=None)


def prepared(make: Callable[[], Other]) -> MixedBackend:
    backend = MixedBackend(SdpaBackend(), make)
    backend.prepare(STORAGE, 1, None)
    return backend


@pytest.mark.parametrize(("num_rows", "masked", "taken"), [(9, False, 0), (10, False, 1), (10, True, 0)])
def test_steps_of_many_tokens_without_masks_go_to_the_other(
    num_rows: int, masked: bool, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed, "LONG_STEP_TOKENS", 10)
    other = Other()
    backend = prepared(lambda: other)

    attended = attend(backend, num_rows, masked=masked)

    assert backend.name == "sdpa and other"
    assert attended.shape == (num_rows, 1, 8)
    assert other.num_runs == taken


def test_an_other_that_cannot_be_had_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "LONG_STEP_TOKENS", 1)

    def refuse() -> Other:
        raise ModelLoadError("not here")

    backend = prepared(refuse)

    assert backend.name == "sdpa"
    assert attend(backend, 4).shape == (4, 1, 8)
