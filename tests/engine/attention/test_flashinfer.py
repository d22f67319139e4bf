"""What flashinfer is handed: which lanes, which kernels, which plan, which bits of masks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.backend import LaneLayout
from engine.attention.flashinfer import LONG_ROWS, FlashInferBackend
from engine.attention.flashinfer_library import VERSION, FlashInfer, Form
from engine.attention.packed_masks import pack_masks
from engine.attention.page_lists import take_lanes
from engine.attention.tables import flatten
from engine.errors import ModelLoadError
from tests.engine.attention.flashinfer_double import SlowLibrary
from tests.engine.attention.test_contract import DEVICE, Step, dense, make_step

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="plain arithmetic stands for the kernels, on a CPU")

FA2, FA3 = Form("fa2", torch.bfloat16, 64, False), Form("fa3", torch.bfloat16, 64, False)


@pytest.fixture(autouse=True)
def own_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test tells libraries of this process where to keep kernels."""
    for variable in ("WYE_HOME", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"):
        monkeypatch.setenv(variable, str(tmp_path))


def step_of(lanes: list[tuple[int, int]], **options: object) -> Step:
    return make_step(lanes=lanes, head_dim=64, dtype=torch.bfloat16, **options)  # type: ignore[arg-type]


def attend(backend: FlashInferBackend, step: Step, window: int | None = None) -> None:
    """Both layers of a step, against plain arithmetic."""
    plan = backend.plan(step.layout, step.storage)
    for layer in range(2):
        output = backend.run(layer, step.query, step.storage, plan, scale=0.3, sliding_window=window)
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output.float(), dense(step, layer, 0.3, window).float(), atol=0.02, rtol=0.01)


@pytest.mark.parametrize("window", [None, 7, 100])
@pytest.mark.parametrize("families", [("fa2", "fa3"), ("fa2",)])
def test_prefill_chunks_decoding_and_masked_lanes_of_one_step(families: tuple[str, ...], window: int | None) -> None:
    lanes = [(1, 1), (LONG_ROWS, 80), (1, 300), (6, 90), (200, 200), (0, 30), (1, 17), (70, 260), (1, 16)]
    library = SlowLibrary(families)  # type: ignore[arg-type]
    attend(FlashInferBackend(library), step_of(lanes, masked=frozenset({3, 7})), window)
    assert {form.family for form in library.modules} == set(families)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_steps(data: st.DataObject) -> None:
    lanes = data.draw(
        st.lists(
            st.tuples(st.integers(1, 150), st.integers(0, 300)).map(lambda lane: (lane[0], lane[0] + lane[1])),
            min_size=1,
            max_size=6,
        )
    )
    step = step_of(
        lanes,
        page_size=data.draw(st.sampled_from([8, 16, 32])),
        num_kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.sampled_from([1, 2, 5])),
        masked=data.draw(st.frozensets(st.integers(0, len(lanes) - 1), max_size=2)),
        seed=data.draw(st.integers(0, 100)),
    )
    attend(FlashInferBackend(SlowLibrary()), step, data.draw(st.none() | st.integers(1, 200)))


def test_long_lanes_go_to_one_family_and_the_rest_to_the_other_in_one_call_a_layer_each() -> None:
    library = SlowLibrary()
    attend(FlashInferBackend(library), step_of([(1, 40), (1, 50), (LONG_ROWS, 64), (LONG_ROWS - 1, 64)]))
    assert library.modules[FA3].plans == [(LONG_ROWS, 1)]
    assert library.modules[FA2].plans == [(LONG_ROWS + 1, 3)]
    assert library.modules[FA2].runs == library.modules[FA3].runs == 2


def test_pages_that_a_lane_does_not_use_yet_are_left_out() -> None:
    step = step_of([(1, 17), (5, 30)])
    tables = [[*table, 3, 4] for table in step.layout.block_tables]
    layout = LaneLayout(
        query_starts=step.layout.query_starts,
        context_lens=step.layout.context_lens,
        block_tables=tables,
        slots=step.layout.slots,
    )
    attend(FlashInferBackend(SlowLibrary()), Step(step.storage, layout, step.query))


def test_lanes_keep_their_plan_while_a_full_gpu_need_not_split_them() -> None:
    library = SlowLibrary(processors=2)
    backend = FlashInferBackend(library)
    for grown in range(3):
        attend(backend, step_of([(1, 200 + 16 * grown), (1, 30 + grown)]))
    assert library.modules[FA2].plans == [(2, 2)]
    attend(backend, step_of([(1, 200), (1, 30), (1, 2)]))
    assert library.modules[FA2].plans == [(2, 2), (3, 3)]


def test_split_lanes_keep_their_plan_until_a_page_is_full() -> None:
    library = SlowLibrary(processors=50)
    backend = FlashInferBackend(library)
    for length in (200, 207, 208, 209):  # pages of 16
        attend(backend, step_of([(1, length)]))
    assert len(library.modules[FA2].plans) == 2


def test_prefill_is_planned_anew_each_step_because_its_plan_names_lengths() -> None:
    library = SlowLibrary(processors=1)
    backend = FlashInferBackend(library)
    attend(backend, step_of([(100, 100), (100, 102)]))
    attend(backend, step_of([(100, 100), (100, 101)]))
    assert len(library.modules[FA3].plans) == 2


def test_one_step_can_be_attended_to_with_and_without_a_window() -> None:
    backend, step = FlashInferBackend(SlowLibrary()), step_of([(1, 90), (80, 200)])
    plan = backend.plan(step.layout, step.storage)
    for layer, window in ((0, None), (1, 20)):
        output = backend.run(layer, step.query, step.storage, plan, scale=0.3, sliding_window=window)
        torch.testing.assert_close(output.float(), dense(step, layer, 0.3, window).float(), atol=0.02, rtol=0.01)


def test_kernels_of_a_model_are_loaded_before_its_first_step() -> None:
    library = SlowLibrary()
    backend, step = FlashInferBackend(library), step_of([(1, 40), (100, 100)])
    backend.prepare(step.storage, 6, None)
    assert set(library.modules) == {FA2, FA3}
    attend(backend, step)


@pytest.mark.parametrize(
    ("head_dim", "dtype", "num_heads", "meaning"),
    [
        (80, torch.bfloat16, 6, "heads of 64, 128, 256 numbers in bfloat16 or float16, not of 80 in bfloat16"),
        (64, torch.float32, 6, "not of 64 in float32"),
        (64, torch.bfloat16, 5, "5 query heads are no multiple of 2"),
    ],
)
def test_a_model_that_its_kernels_do_not_take_is_refused(
    head_dim: int, dtype: torch.dtype, num_heads: int, meaning: str
) -> None:
    step = make_step(lanes=[(1, 1)], head_dim=head_dim, dtype=dtype)
    with pytest.raises(ModelLoadError, match=meaning):
        FlashInferBackend(SlowLibrary()).prepare(step.storage, num_heads, None)


def test_rows_that_lie_together_are_named_by_their_ends_alone() -> None:
    tables = flatten([0, 2, 2, 5, 6], [20, 7, 5, 33], [[1, 2], [3], [4], [5, 6, 7, 8]])
    lists = take_lanes(tables, np.array([0, 2]), 16)
    assert lists.rows == (0, 5)
    assert lists.pages.tolist() == [1, 2, 4]
    assert lists.last_page_lens.tolist() == [4, 5]
    scattered = take_lanes(tables, np.array([0, 3]), 16)
    assert not isinstance(scattered.rows, tuple)
    assert scattered.rows.tolist() == [0, 1, 5]
    assert scattered.pages.tolist() == [1, 2, 5, 6, 7]


def test_masks_are_packed_from_the_lowest_bit_and_each_begins_a_byte() -> None:
    masks = [torch.tensor([[True, False, True], [False, False, True], [True, True, True]]), torch.tensor([[True]])]
    packed = pack_masks(masks, torch.device("cpu"))
    assert packed.bits.tolist() == [0b11100101, 0b1, 0b1]
    assert packed.starts.tolist() == [0, 2, 3]


def test_a_missing_library_and_another_version_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(ModelLoadError, match=r"does not load .*pip install 'wye\[cuda\]'"):
        FlashInfer()
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(__version__="9.9"))
    with pytest.raises(ModelLoadError, match=rf"made for flashinfer-python {VERSION}, but 9\.9 is installed"):
        FlashInfer()


def test_a_compiler_that_is_missing_is_named_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*_: object) -> object:
        raise RuntimeError("Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist")

    flashinfer, jit, prefill = ModuleType("flashinfer"), ModuleType("flashinfer.jit"), ModuleType("flashinfer.prefill")
    flashinfer.__dict__.update(__version__=VERSION, jit=jit, prefill=prefill)
    jit.__dict__.update(gen_batch_prefill_module=no_compiler, build_jit_specs=None, env=None)
    prefill.__dict__.update(get_batch_prefill_module=None)
    for module in (flashinfer, jit, prefill):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ModelLoadError, match=r"needs nvcc of CUDA .* Could not find nvcc"):
        FlashInfer().load([FA2])
