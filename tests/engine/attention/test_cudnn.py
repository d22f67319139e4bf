"""Whole prompts by cuDNN beside all other lanes: on a GPU by itself, elsewhere with torch's arithmetic in its place."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.backend import DenseBackend, DenseRows
from engine.attention.cudnn import CudnnBackend
from engine.attention.cudnn_library import attend_by_cudnn, attend_by_torch, cudnn_refusal
from engine.attention.fresh import Cuts
from engine.attention.preparing import PreparedBackend
from engine.attention.triton import TritonBackend
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage
from tests.engine.attention.test_contract import DEVICE, Step, dense, make_step
from tests.engine.interpreting import mend_interpreter

mend_interpreter()

ON_GPU = DEVICE.type == "cuda"
CUTS = Cuts(sizes=(32, 64, 96), least_filled=20, batch_rows=192, most_filled=99)
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
TOLERANCE, RELATIVE = (0.02, 0.01) if ON_GPU else (2e-5, 0.0)
"""What bfloat16 leaves of a number from 4 on is 0.016 beside it."""


def backend_for(step: Step, window: int | None = None, cuts: Cuts = CUTS) -> CudnnBackend:
    """Ready for a step; its dtype is not looked at where torch attends."""
    if not ON_GPU:
        backend = CudnnBackend(TritonBackend(), cuts, attend_by_torch, wanted=1)
        backend._window = window
        return backend
    refusal = cudnn_refusal(DEVICE)
    if refusal is not None:
        pytest.skip(refusal)
    backend = CudnnBackend(TritonBackend(), cuts, wanted=1)
    backend.prepare(step.storage, step.query.shape[1], window)
    return backend


def qkv_of(step: Step, layer: int) -> torch.Tensor:
    """[T, (H + 2G) * D], of which the last rows' K and V are those in the pages, and nothing else is known."""
    key, value = step.storage.gather(layer, step.layout.slots)
    queries = torch.full_like(step.query, float("nan"))
    return torch.cat((queries, torch.full_like(key, float("nan")), value), 1).flatten(1)


def fill(rows: DenseRows, step: Step, layer: int) -> None:
    """Does what whoever rotates rows does."""
    key, value = step.storage.gather(layer, step.layout.slots)
    num_rows = len(step.query)
    targets = torch.arange(num_rows, device=DEVICE) if rows.targets is None else rows.targets
    rows.query[targets] = step.query
    is_dense = targets >= (0 if rows.targets is None else num_rows)
    places = targets[is_dense] - (0 if rows.targets is None else num_rows)
    rows.key[places] = key[is_dense]
    if rows.has_values:
        torch.testing.assert_close(rows.value[places], value[is_dense], atol=0, rtol=0)
    else:
        rows.value[places] = value[is_dense]


def check(step: Step, window: int | None = None, cuts: Cuts = CUTS) -> CudnnBackend:
    """Both ways to attend give what dense arithmetic does."""
    backend = backend_for(step, window, cuts)
    plan = backend.plan(step.layout, step.storage)
    for layer in range(len(step.storage.layers)):
        expected = dense(step, layer, 0.3, window).float()
        found = backend.run(layer, step.query, step.storage, plan, scale=0.3, sliding_window=window)
        assert found.dtype == step.query.dtype
        torch.testing.assert_close(found.float().cpu(), expected, atol=TOLERANCE, rtol=RELATIVE)
        rows = backend.dense_rows(plan, qkv_of(step, layer), step.storage)
        if rows is None:
            assert plan.fresh is None
            continue
        fill(rows, step, layer)
        found = backend.run_dense(layer, rows, step.storage, plan, scale=0.3, sliding_window=window)
        assert found.shape == step.query.shape
        torch.testing.assert_close(found.float().cpu(), expected, atol=TOLERANCE, rtol=RELATIVE)
    return backend


def step_of(lanes: list[tuple[int, int]], *, masked: frozenset[int] = frozenset(), layers: int = 2) -> Step:
    return make_step(lanes=lanes, dtype=DTYPE, head_dim=64 if ON_GPU else 16, masked=masked, layers=layers)


def test_a_step_of_prompts_of_one_length_is_one_batch_of_views() -> None:
    step = step_of([(64, 64)] * 3)
    backend = check(step)
    plan = backend.plan(step.layout, step.storage)
    qkv = qkv_of(step, 0)

    rows = backend.dense_rows(plan, qkv, step.storage)

    assert isinstance(backend, DenseBackend)
    assert plan.others is None
    assert plan.fresh is not None
    assert len(plan.fresh.batches) == 1
    assert rows is not None
    assert rows.has_values
    assert rows.value.untyped_storage().data_ptr() == qkv.untyped_storage().data_ptr()
    assert rows.query.shape == step.query.shape


@pytest.mark.parametrize("window", [None, 70])
def test_prompts_beside_decoding_lanes_and_chunks(window: int | None) -> None:
    check(step_of([(1, 40), (32, 32), (32, 32), (9, 60), (64, 64), (1, 1)]), window)


@pytest.mark.parametrize("window", [None, 50])
def test_prompts_of_any_length_are_filled_up(window: int | None) -> None:
    check(step_of([(33, 33), (1, 50), (20, 20), (33, 33), (33, 33), (90, 90), (21, 77), (64, 64)]), window)


def test_a_masked_prompt_is_left_to_others() -> None:
    check(step_of([(32, 32), (32, 32), (40, 40)], masked=frozenset({1}), layers=1))


def test_a_step_without_prompts_is_left_to_others() -> None:
    step = step_of([(1, 40), (19, 19), (97, 97), (30, 31)])
    backend = check(step)

    assert not backend.suits(step.layout)


def test_more_prompts_than_go_into_a_batch() -> None:
    check(step_of([(32, 32)] * 7 + [(96, 96)] * 3, layers=1))
    check(step_of([(31, 31)] * 7 + [(90, 90)] * 3, layers=1))


@pytest.mark.parametrize("seed", [0, 1])
def test_what_lies_in_the_filling_changes_nothing(seed: int) -> None:
    """Nor does a lane that is no number: its neighbours in a batch see nothing of it."""
    lanes = [(33, 33), (64, 64), (40, 40)]
    step = make_step(lanes=lanes, dtype=DTYPE, head_dim=64 if ON_GPU else 16, layers=1, seed=seed)
    clean = backend_for(step)
    plan = clean.plan(step.layout, step.storage)
    expected = clean.run(0, step.query, step.storage, plan, scale=0.3, sliding_window=None)
    step.storage.slots(0)[:, step.layout.slots[33:97]] = float("nan")

    plan = clean.plan(step.layout, step.storage)
    found = clean.run(0, step.query, step.storage, plan, scale=0.3, sliding_window=None)

    assert found[33:97].isnan().all()
    assert torch.equal(found[:33], expected[:33])
    assert torch.equal(found[97:], expected[97:])


def test_a_step_suits_if_half_of_its_rows_are_of_prompts() -> None:
    backend = backend_for(step_of([(32, 32)]))

    assert backend.suits(step_of([(32, 32), (32, 33)]).layout)
    assert not backend.suits(step_of([(32, 32), (33, 34)]).layout)


def test_a_shape_is_taken_once_it_has_come_often_enough() -> None:
    backend = CudnnBackend(TritonBackend(), CUTS, attend_by_torch, wanted=3)
    pair, single, both = (
        step_of(lanes, layers=1) for lanes in ([(64, 64)] * 2, [(32, 32)], [(64, 64), (64, 64), (32, 32)])
    )

    def come(step: Step) -> bool:
        """As a step comes: asked about more than once, but not the same layout that came before."""
        layout = msgspec.structs.replace(step.layout)
        suits = backend.suits(layout)
        assert backend.suits(layout) == suits
        assert (backend.plan(layout, step.storage).fresh is not None) == suits
        return suits

    assert [come(pair) for _ in range(4)] == [False, False, True, True]
    assert [come(both), come(both)] == [False, False]
    assert come(single)
    assert come(both)


@pytest.mark.skipif(ON_GPU, reason="cuDNN works there")
def test_where_the_library_fails_torch_attends_and_it_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def fail(*args: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        raise RuntimeError("no plan for this")

    step = step_of([(64, 64), (64, 64), (1, 9)])
    backend = CudnnBackend(TritonBackend(), CUTS, fail, wanted=1)
    assert backend.suits(step.layout)
    plan = backend.plan(step.layout, step.storage)

    for layer in range(2):
        found = backend.run(layer, step.query, step.storage, plan, scale=0.3, sliding_window=None)
        torch.testing.assert_close(found, dense(step, layer, 0.3, None).float(), atol=2e-5, rtol=0)

    assert calls == 1
    assert "no plan for this" in caplog.text
    assert not backend.suits(step.layout)


@pytest.mark.skipif(ON_GPU, reason="nothing is allocated there for this")
def test_a_lack_of_memory_is_told() -> None:
    def fail(*args: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    step = step_of([(64, 64)])
    backend = CudnnBackend(TritonBackend(), CUTS, fail, wanted=1)
    plan = backend.plan(step.layout, step.storage)

    with pytest.raises(torch.OutOfMemoryError):
        backend.run(0, step.query, step.storage, plan, scale=0.3, sliding_window=None)
    assert backend.suits(step.layout)


def test_another_window_than_it_was_made_ready_for_is_refused() -> None:
    step = step_of([(32, 32)])
    backend = backend_for(step)

    with pytest.raises(ValueError, match="sliding window of None, and not of 9"):
        backend.run(0, step.query, step.storage, backend.plan(step.layout, step.storage), scale=1, sliding_window=9)


def storage_of(dtype: torch.dtype, head_dim: int = 64) -> KVStorage:
    return KVStorage(
        num_layers=1, num_pages=4, page_size=16, num_kv_heads=2, head_dim=head_dim, dtype=dtype, device=DEVICE
    )


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (storage_of(torch.float32), "not float32"),
        (storage_of(torch.int8), "not int8"),
        (storage_of(torch.bfloat16, head_dim=256), "not of 256"),
        (storage_of(torch.bfloat16, head_dim=20), "not of 20"),
    ],
)
def test_models_that_it_does_not_take_are_refused(storage: KVStorage, message: str) -> None:
    backend = CudnnBackend(TritonBackend())

    assert isinstance(backend, PreparedBackend)
    with pytest.raises(ModelLoadError, match=message):
        backend.prepare(storage, 4, None)


def test_it_is_tried_when_made_ready() -> None:
    def fail(*args: object) -> torch.Tensor:
        raise RuntimeError("not on this card\nand more")

    storage = storage_of(torch.bfloat16)
    CudnnBackend(TritonBackend(), CUTS, attend_by_torch).prepare(storage, 4, None)
    with pytest.raises(ModelLoadError, match=r"does not work here: not on this card$"):
        CudnnBackend(TritonBackend(), CUTS, fail).prepare(storage, 4, None)
    with pytest.raises(ModelLoadError, match="something else"):
        CudnnBackend(TritonBackend(), CUTS, lambda query, key, value, scale: 2 * query).prepare(storage, 4, None)


def test_a_device_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert cudnn_refusal(torch.device("cuda")) == "torch has no cuDNN here"
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert cudnn_refusal(torch.device("cuda")) == "compute capability 9.0 is needed, and 8.0 is there"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert cudnn_refusal(torch.device("cuda")) is None


@pytest.mark.parametrize(("heads", "groups", "size"), [(16, 8, 128), (32, 8, 128), (9, 3, 64), (14, 2, 64), (8, 8, 80)])
@pytest.mark.parametrize("num_rows", [512, 777])
def test_the_library_attends_as_torch_does(heads: int, groups: int, size: int, num_rows: int) -> None:
    if not ON_GPU:
        pytest.skip("cuDNN is for GPUs")
    made = torch.Generator(device=DEVICE).manual_seed(0)
    qkv = torch.randn((3 * num_rows, heads + 2 * groups, size), generator=made, device=DEVICE).to(torch.bfloat16)
    batch = qkv.view(3, num_rows, -1, size).transpose(1, 2)
    query, key = batch[:, :heads].contiguous(), batch[:, heads : heads + groups].contiguous()
    value = batch[:, heads + groups :]

    found = attend_by_cudnn(query, key, value, 0.1)

    expected = attend_by_torch(query.float(), key.float(), value.float(), 0.1)
    torch.testing.assert_close(found.float(), expected, atol=TOLERANCE, rtol=RELATIVE)
    assert torch.equal(found, attend_by_cudnn(query, key, value, 0.1))


@settings(max_examples=40 if ON_GPU else 8, deadline=None)
@given(data=st.data())
def test_random_steps(data: st.DataObject) -> None:
    short = st.tuples(st.integers(1, 20), st.integers(0, 30)).map(lambda lane: (lane[0], sum(lane)))
    whole = st.integers(1, 100).map(lambda count: (count, count)) | st.sampled_from([(32, 32), (64, 64)])
    lanes = data.draw(st.lists(short | whole | whole, min_size=1, max_size=5))
    masked = data.draw(st.frozensets(st.integers(0, len(lanes) - 1), max_size=1))
    check(step_of(lanes, masked=masked, layers=1), data.draw(st.none() | st.integers(10, 120)))


def test_its_own_sizes_take_long_prompts() -> None:
    if not ON_GPU:
        pytest.skip("too long for an interpreter")
    step = make_step(
        lanes=[(1, 300), (2048, 2048), (2048, 2048), (700, 700), (3000, 3000), (40, 900), (513, 513)],
        dtype=torch.bfloat16,
        head_dim=128,
        layers=1,
    )
    check(step, cuts=Cuts())
