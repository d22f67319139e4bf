"""Two backends for one pool: which takes which step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.attention import mixed
from engine.attention.backend import DenseBackend, DenseRows, LaneLayout
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


class Picky(Other):
    """Takes what it is told to, masks included, and rows instead of pages."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = True

    def suits(self, layout: LaneLayout) -> bool:
        return self.answer

    def dense_rows(self, plan: Any, qkv: torch.Tensor, storage: KVStorage) -> DenseRows:
        return DenseRows(query=qkv, key=qkv, value=qkv, targets=None, has_values=True)

    def run_dense(self, layer: int, rows: DenseRows, *args: Any, **kwargs: Any) -> torch.Tensor:
        return rows.query + layer


def test_a_picky_other_says_itself_which_long_steps_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "LONG_STEP_TOKENS", 10)
    other = Picky()
    backend = prepared(lambda: other)

    attend(backend, 9)
    assert other.num_runs == 0
    attend(backend, 10, masked=True)
    assert other.num_runs == 1
    other.answer = False
    attend(backend, 10)
    assert other.num_runs == 1


def test_rows_are_asked_for_by_whoever_takes_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "LONG_STEP_TOKENS", 1)
    other = Picky()
    backend = prepared(lambda: other)
    layout = LaneLayout(query_starts=[0, 4], context_lens=[4], block_tables=[[0]], slots=torch.arange(4))
    qkv = torch.ones(4, 24)

    assert isinstance(backend, DenseBackend)
    plan = backend.plan(layout, STORAGE)
    rows = backend.dense_rows(plan, qkv, STORAGE)
    assert rows is not None
    assert backend.run_dense(3, rows, STORAGE, plan, scale=1.0, sliding_window=None)[0, 0] == 4
    other.answer = False
    assert backend.dense_rows(backend.plan(layout, STORAGE), qkv, STORAGE) is None
