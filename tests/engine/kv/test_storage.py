"""K and V as they are kept: what comes back is what was written, and whoever copies pages copies all of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.select import select_backend
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage
from engine.kv.tiers import HostStore, Transfer
from engine.quantization.formats import FORMATS
from tests.engine.attention.test_contract import make_step

LAYERS, PAGES, SIZE, HEADS, DIM = 2, 6, 4, 3, 16

by_format = pytest.mark.parametrize("name", FORMATS)


def storage(dtype: torch.dtype, num_pages: int = PAGES) -> KVStorage:
    return KVStorage(
        num_layers=LAYERS,
        num_pages=num_pages,
        page_size=SIZE,
        num_kv_heads=HEADS,
        head_dim=DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(name: str) -> KVStorage:
    kept = storage(FORMATS[name].dtype)
    for layer in range(LAYERS):
        values = random(2, PAGES * SIZE, HEADS, DIM, seed=layer)
        kept.write(layer, values[0], values[1], torch.arange(PAGES * SIZE))
    return kept


def everything(kept: KVStorage) -> list[torch.Tensor]:
    return [kept.gather(layer, torch.arange(kept.num_pages * SIZE)) for layer in range(LAYERS)]


@by_format
def test_what_is_written_comes_back_but_for_rounding_in_the_slots_it_was_written_to(name: str) -> None:
    kept, slots = storage(FORMATS[name].dtype), torch.tensor([17, 3, 22, 8])
    key, value = random(4, HEADS, DIM) * torch.logspace(-3, 3, 4)[:, None, None], random(4, HEADS, DIM, seed=1)
    kept.write(1, key, value, slots)
    found = kept.gather(1, slots)
    assert found.dtype == kept.read_dtype == torch.float32
    for written, read in zip((key, value), found, strict=True):
        error = (read - written).abs() / written.abs().amax(-1, keepdim=True)
        assert 0 < error.max() < (0.5 / 127 * 1.02 if name == "int8" else 1 / 27)
    rest = torch.tensor([slot for slot in range(PAGES * SIZE) if slot not in slots.tolist()])
    assert not kept.gather(1, rest).any()
    assert not kept.gather(0, slots).any()


@by_format
def test_smoothing_changes_nothing_but_what_rounding_takes(name: str) -> None:
    plain, smooth = storage(FORMATS[name].dtype), storage(FORMATS[name].dtype)
    assert smooth.smoothing is not None
    key = random(24, HEADS, DIM) * 0.1
    key[..., 5] += 12
    key[..., 2] *= 40
    smooth.smoothing.mean[1] = key.mean(0)
    smooth.smoothing.scale[1] = (key - key.mean(0)).abs().amax(0)
    errors = []
    for kept in (plain, smooth):
        kept.write(1, key, key, torch.arange(24))
        found = kept.gather(1, torch.arange(24))
        # The worst channel's error as a share of how far apart its values are, which is all that attention sees.
        errors.append(((found[0] - key).abs().mean(0) / key.std(0)).max().item())
        torch.testing.assert_close(found[1], key, atol=0.5 if name == "fp8" else 0.05, rtol=0)
    assert errors[1] < errors[0] / 5


@by_format
def test_a_value_that_is_not_finite_does_not_pass_for_a_number(name: str) -> None:
    kept = storage(FORMATS[name].dtype)
    value = random(1, HEADS, DIM)
    value[0, 1, 3] = float("nan")
    kept.write(0, value, value, torch.tensor([2]))
    assert kept.gather(0, torch.tensor([2])).isfinite().all(-1).tolist() == [[[True, False, True]]] * 2


@by_format
def test_copied_pages_are_whole(name: str) -> None:
    kept = filled(name)
    before = everything(kept)
    kept.copy_pages([(1, 4), (5, 0)])
    after = everything(kept)
    for old, new in zip(before, after, strict=True):
        pages, copied = old.view(2, PAGES, SIZE, HEADS, DIM), new.view(2, PAGES, SIZE, HEADS, DIM)
        assert torch.equal(copied, pages[:, [5, 1, 2, 3, 1, 5]])


@by_format
def test_pages_come_back_whole_from_host_memory(name: str) -> None:
    kept = filled(name)
    before = everything(kept)
    host = HostStore(kept, 3)
    saved = Transfer([1, 4], [2, 0])
    host.run(saved)
    for tensor in kept.paged:
        tensor.zero_()
    host.run(Transfer([3, 5], [2, 0], saved=saved))
    for old, new in zip(before, everything(kept), strict=True):
        pages, restored = old.view(2, PAGES, SIZE, HEADS, DIM), new.view(2, PAGES, SIZE, HEADS, DIM)
        assert torch.equal(restored[:, [3, 5]], pages[:, [1, 4]])
        assert not restored[:, [0, 1, 2, 4]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_a_page_takes_as_many_bytes_as_are_said(dtype: torch.dtype) -> None:
    taken = sum(tensor.nbytes for tensor in storage(dtype).paged) / PAGES
    page_bytes = KVStorage.page_bytes(num_layers=LAYERS, page_size=SIZE, num_kv_heads=HEADS, head_dim=DIM, dtype=dtype)
    assert page_bytes == taken


@by_format
@settings(max_examples=15, deadline=None)
@given(
    lanes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=4),
    page_size=st.sampled_from([4, 16]),
    seed=st.integers(0, 100),
)
def test_attention_reads_what_the_kept_numbers_stand_for(
    name: str, lanes: list[tuple[int, int]], page_size: int, seed: int
) -> None:
    step = make_step(lanes=[(rows, rows + past) for rows, past in lanes], page_size=page_size, seed=seed)
    plain = step.storage
    codes = KVStorage(
        num_layers=2,
        num_pages=plain.num_pages,
        page_size=page_size,
        num_kv_heads=plain.num_kv_heads,
        head_dim=plain.head_dim,
        dtype=FORMATS[name].dtype,
        device=torch.device("cpu"),
    )
    assert codes.smoothing is not None
    codes.smoothing.mean.copy_(random(*codes.smoothing.mean.shape))
    codes.smoothing.scale.copy_(random(*codes.smoothing.scale.shape).abs() + 0.1)
    slots = torch.arange(plain.num_pages * page_size)
    for layer in range(2):
        key, value = plain.gather(layer, slots)
        codes.write(layer, key, value, slots)
        key, value = codes.gather(layer, slots)
        plain.write(layer, key, value, slots)
    backend = select_backend("auto", "cpu", quantized_kv=True)
    outputs = [
        backend.run(1, step.query, kept, backend.plan(step.layout, kept), scale=0.3, sliding_window=None)
        for kept in (plain, codes)
    ]
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=0)


def test_a_backend_that_cannot_read_codes_is_refused_by_name_and_not_taken_otherwise() -> None:
    with pytest.raises(ModelLoadError, match=r"'cpu' does not read K and V kept as int8 or fp8; there are .*sdpa"):
        select_backend("cpu", "cpu", quantized_kv=True)
    assert select_backend("auto", "cpu", quantized_kv=True).name == "sdpa"
    assert select_backend("auto", "cpu").name == "cpu"
