"""Every backend attends as plain dense arithmetic does, whatever the lanes and wherever their pages lie."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.backend import AttentionBackend, LaneLayout
from engine.attention.preparing import PreparedBackend
from engine.attention.select import BACKENDS, select_backend
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage
from engine.quantization.formats import FORMATS

DEVICE = torch.device(os.environ.get("WYE_TEST_DEVICE", "cpu"))
"""Where steps lie; on a GPU all backends made for one are tested too."""

INTERPRETED = DEVICE.type == "cpu" and importlib.util.find_spec("triton") is not None
"""Triton's kernels run on a CPU, one operation after the other: right, but slow."""


@dataclass
class Step:
    storage: KVStorage
    layout: LaneLayout
    query: torch.Tensor


def make_step(
    *,
    lanes: list[tuple[int, int]],
    page_size: int = 16,
    num_kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    fragmented: bool = True,
    masked: frozenset[int] = frozenset(),
    seed: int = 0,
    layers: int = 2,
) -> Step:
    """A step of lanes given as (rows, context) over random K and V; unused slots hold garbage."""
    random = torch.Generator().manual_seed(seed)
    needed = [-(-context // page_size) for _, context in lanes]
    num_pages = sum(needed) + 7
    storage = KVStorage(
        num_layers=layers,
        num_pages=num_pages,
        page_size=page_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        device=DEVICE,
        read_dtype=torch.float32 if dtype.itemsize == 1 else None,
    )
    for garbage in storage.scales or storage.layers:
        garbage.fill_(float("nan"))
    if storage.smoothing is not None:
        mean, scale = storage.smoothing.mean, storage.smoothing.scale
        mean.copy_(torch.empty(mean.shape).normal_(0, 2, generator=random))
        scale.copy_(torch.empty(scale.shape).uniform_(0.3, 3, generator=random))
    order = torch.randperm(num_pages, generator=random).tolist() if fragmented else list(range(num_pages))
    starts, tables, slots, masks = [0], [], [], list[torch.Tensor | None]()
    for index, ((rows, context), pages) in enumerate(zip(lanes, needed, strict=True)):
        table = order[:pages]
        order = order[pages:]
        own = [table[p // page_size] * page_size + p % page_size for p in range(context)]
        for layer in range(layers):
            values = torch.randn((2, context, num_kv_heads, head_dim), generator=random)
            if storage.format is None:
                storage.slots(layer)[:, own] = values.to(dtype).to(DEVICE)
            else:
                key, value = values.to(DEVICE)
                storage.write(layer, key, value, torch.tensor(own, device=DEVICE))
        starts.append(starts[-1] + rows)
        tables.append(table)
        slots += own[context - rows :]
        if index in masked:
            mask = torch.rand((rows, context), generator=random) < 0.3
            mask[torch.arange(rows), torch.randint(0, context, (rows,), generator=random)] = True
            masks.append(mask)
        else:
            masks.append(None)
    layout = LaneLayout(
        query_starts=starts,
        context_lens=[context for _, context in lanes],
        block_tables=tables,
        slots=torch.tensor(slots, dtype=torch.int64, device=DEVICE),
        masks=masks if masked else (),
    )
    query = torch.randn((starts[-1], num_kv_heads * group, head_dim), generator=random).to(storage.read_dtype)
    query = query.to(DEVICE)
    return Step(storage, layout, query)


def dense(step: Step, layer: int, scale: float, window: int | None) -> torch.Tensor:
    """The meaning: one softmax a row over everything it sees, in float64."""
    outputs = []
    layout, size = step.layout, step.storage.page_size
    for lane, context in enumerate(layout.context_lens):
        rows = step.query[layout.query_starts[lane] : layout.query_starts[lane + 1]].double().cpu()
        own = [layout.block_tables[lane][p // size] * size + p % size for p in range(context)]
        keys, values = step.storage.gather(layer, torch.tensor(own, device=DEVICE)).double().cpu()
        group = rows.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("nhd,chd->hnc", rows, keys) * scale
        mask = layout.masks[lane] if layout.masks else None
        if mask is None:
            distance = (context - len(rows) + torch.arange(len(rows)))[:, None] - torch.arange(context)
            mask = (distance >= 0) & (distance < (window or context))
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hnc,chd->nhd", weights, values))
    return torch.cat(outputs)


def backend_for(name: str, step: Step, window: int | None = None) -> AttentionBackend:
    """The backend; where it cannot run, the test is skipped with the reason."""
    devices = BACKENDS[name].devices
    if name == "triton" and INTERPRETED:
        from tests.engine.interpreting import mend_interpreter

        mend_interpreter()
        return BACKENDS[name].make()
    if devices is not None and DEVICE.type not in devices:
        pytest.skip(f"{name} runs on {', '.join(devices)}; WYE_TEST_DEVICE says {DEVICE.type}")
    try:
        backend = select_backend(name, DEVICE)
        if isinstance(backend, PreparedBackend):
            backend.prepare(step.storage, step.query.shape[1], window)
    except ModelLoadError as error:
        pytest.skip(str(error))
    return backend


def check(name: str, step: Step, window: int | None = None, tolerance: float = 2e-5) -> None:
    backend = backend_for(name, step, window)
    plan = backend.plan(step.layout, step.storage)
    for layer in range(len(step.storage.layers)):
        output = backend.run(layer, step.query, step.storage, plan, scale=0.3, sliding_window=window)
        assert output.shape == step.query.shape
        assert output.dtype == step.query.dtype
        expected = dense(step, layer, 0.3, window).to(torch.float32)
        torch.testing.assert_close(output.float().cpu(), expected, atol=tolerance, rtol=0)


SLOW = frozenset({"triton"} if INTERPRETED else ())
"""Backends of which one step takes about as long as all steps of another."""

reads_quantized = pytest.mark.parametrize("name", sorted(name for name in BACKENDS if BACKENDS[name].reads_quantized))
every_backend = pytest.mark.parametrize("name", sorted(BACKENDS))
fast_backend = pytest.mark.parametrize("name", sorted(set(BACKENDS) - SLOW))
slow_backend = pytest.mark.parametrize("name", sorted(SLOW))


@fast_backend
@pytest.mark.parametrize("window", [None, 7, 100])
@pytest.mark.parametrize("fragmented", [False, True])
def test_mixed_prefill_chunk_and_decode_lanes(name: str, fragmented: bool, window: int | None) -> None:
    lanes = [(1, 1), (40, 40), (1, 300), (33, 200), (1, 17), (5, 260), (1, 16)]
    check(name, make_step(lanes=lanes, fragmented=fragmented), window)


@slow_backend
@pytest.mark.parametrize("window", [None, 7, 60])
def test_mixed_lanes_in_fewer_heads(name: str, window: int | None) -> None:
    lanes = [(1, 1), (40, 40), (1, 300), (33, 130), (0, 9), (5, 60), (1, 16)]
    check(name, make_step(lanes=lanes, num_kv_heads=1, layers=1), window)


@every_backend
def test_a_long_history_in_many_short_runs(name: str) -> None:
    step = make_step(lanes=[(1, 1300), (20, 900)], num_kv_heads=1, group=2, page_size=4, layers=1)
    check(name, step)
    check(name, step, window=700)


@fast_backend
def test_a_chunk_longer_than_the_window(name: str) -> None:
    check(name, make_step(lanes=[(300, 700), (150, 150)], fragmented=False), window=20)


@fast_backend
def test_many_decode_lanes_of_unlike_length(name: str) -> None:
    lanes = [(1, 1 + (index * 37) % 240) for index in range(40)]
    check(name, make_step(lanes=lanes))
    check(name, make_step(lanes=lanes, fragmented=False), window=50)


@slow_backend
def test_decode_lanes_enough_to_pair_heads(name: str) -> None:
    lanes = [(1, 1 + (index * 37) % 90) for index in range(16)]
    check(name, make_step(lanes=lanes, layers=1))


@every_backend
def test_bfloat16_stays_near_the_exact_result(name: str) -> None:
    lanes = [(1, 100), (20, 400), (1, 700), (64, 64)]
    check(name, make_step(lanes=lanes, dtype=torch.bfloat16, head_dim=64, layers=1), tolerance=0.02)


@reads_quantized
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("window", [None, 30])
def test_keys_and_values_of_one_byte_are_what_they_stand_for(name: str, kind: str, window: int | None) -> None:
    lanes = [(1, 1), (6, 90), (1, 50), (40, 60), (9, 200)]
    check(name, make_step(lanes=lanes, dtype=FORMATS[kind].dtype, masked=frozenset({1}), layers=1), window, 1e-4)


@reads_quantized
def test_pages_of_a_single_token_hold_keys_and_values_of_one_byte_too(name: str) -> None:
    check(name, make_step(lanes=[(1, 9), (5, 20)], dtype=torch.int8, page_size=1, layers=1), tolerance=1e-4)


@reads_quantized
@pytest.mark.parametrize("kind", FORMATS)
def test_heads_paired_in_a_program_have_their_own_scales(name: str, kind: str) -> None:
    lanes = [(1, 1 + (index * 37) % 90) for index in range(16)]
    check(name, make_step(lanes=lanes, dtype=FORMATS[kind].dtype, page_size=8, layers=1), tolerance=1e-4)


@every_backend
def test_masked_lanes_see_what_their_mask_says_beside_causal_ones(name: str) -> None:
    lanes = [(6, 90), (1, 50), (9, 400), (30, 60)]
    check(name, make_step(lanes=lanes, masked=frozenset({0, 2}), layers=1))


@fast_backend
def test_a_lane_without_rows_is_left_out(name: str) -> None:
    check(name, make_step(lanes=[(1, 20), (0, 30), (8, 8)]))


@fast_backend
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_steps(name: str, data: st.DataObject) -> None:
    check_random(name, data, longest=300)


@slow_backend
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_random_short_steps(name: str, data: st.DataObject) -> None:
    check_random(name, data, longest=40, layers=1)


def check_random(name: str, data: st.DataObject, *, longest: int, layers: int = 2) -> None:
    """A drawn step."""
    lanes = data.draw(
        st.lists(
            st.tuples(st.integers(1, longest // 2), st.integers(0, longest)).map(lambda lane: (lane[0], sum(lane)))
            | st.integers(1, longest + 100).map(lambda context: (1, context)),
            min_size=1,
            max_size=6 if layers > 1 else 3,
        )
    )
    step = make_step(
        lanes=lanes,
        page_size=data.draw(st.sampled_from([1, 4, 16, 32])),
        num_kv_heads=data.draw(st.integers(1, 4 if layers > 1 else 2)),
        group=data.draw(st.sampled_from([1, 2, 3, 7])),
        head_dim=data.draw(st.sampled_from([8, 16, 64])),
        fragmented=data.draw(st.booleans()),
        masked=data.draw(st.frozensets(st.integers(0, len(lanes) - 1), max_size=2)),
        seed=data.draw(st.integers(0, 1000)),
        layers=layers,
    )
    check(name, step, data.draw(st.none() | st.integers(1, longest + 50)))
