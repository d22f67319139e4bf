"""Models, threads and pages that the native step cannot take are refused in words; what it holds is let go."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ModelLoadError
from engine.models.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from engine.native.decoder import NativeDecoder, load_native
from engine.native.library import native_module
from tests.native.forms import BEST, native_decoder, needs_native
from tests.native.shapes import SHAPES, random_weights
from tests.native.steps import Rows, make_pool, random_tokens, run, step_inputs
from tests.tiny_models import FAMILIES, Family, write_tiny_model

pytestmark = needs_native

CONFIG = SHAPES["odd_sizes"]
DIMENSIONS = (2, 50, 70, 4, 2, 24, 101, 0)
"""Layers, hidden, intermediate, heads, key/value heads, head_dim, vocabulary, window: those of `CONFIG`."""


@pytest.fixture
def native() -> ModuleType:
    module = native_module()
    assert module is not None
    return module


def new_model(native: ModuleType, dimensions: tuple[int, ...] = DIMENSIONS, form: str = BEST) -> Any:
    return native.new_model(native.new_team(1), form, False, dimensions, 1e-5)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"head_dim": 7}, "head_dim must be even"),
        ({"head_dim": 514}, "at most 512"),
        ({"num_heads": 66, "num_kv_heads": 2}, "at most 32 query heads"),
        ({"num_heads": 5}, "multiple of num_kv_heads"),
    ],
)
def test_a_shape_that_no_kernel_takes_is_a_load_error(changes: dict[str, int], match: str) -> None:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match=f"cannot take this model: .*{match}"):
        NativeDecoder(config, random_weights(config), num_threads=1)


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("value", [0, -1, -(2**31)])
def test_every_size_must_be_positive(native: ModuleType, place: int, value: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|multiple of|head_dim"):
        new_model(native, (*DIMENSIONS[:place], value, *DIMENSIONS[place + 1 :]))


def test_a_negative_window_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="window"):
        new_model(native, (*DIMENSIONS[:7], -1))


@pytest.mark.parametrize("num_threads", [0, -1, 1025, 2**31 - 1])
def test_a_team_has_1_to_1024_threads(native: ModuleType, num_threads: int) -> None:
    with pytest.raises(ValueError, match=rf"num_threads must be 1\.\.1024, got {num_threads}"):
        native.new_team(num_threads)
    with pytest.raises(ModelLoadError, match="num_threads"):
        NativeDecoder(CONFIG, random_weights(CONFIG), num_threads=num_threads)


def test_a_form_that_is_not_there_is_refused(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="form sse2 does not run here"):
        new_model(native, form="sse2")


def test_weights_of_another_format_are_a_load_error() -> None:
    with pytest.raises(ModelLoadError, match=r"bfloat16 weights, got torch\.float32"):
        NativeDecoder(CONFIG, random_weights(CONFIG, torch.float32), num_threads=1)


@pytest.mark.parametrize("kind", range(5))
def test_a_matrix_of_another_size_is_refused(native: ModuleType, kind: int) -> None:
    model = new_model(native)
    for count in (0, 1, 50 * 50 + 1):
        with pytest.raises(ValueError, match="the matrix must have"):
            native.set_matrix(model, kind, 0, np.zeros(count, dtype=np.int16))


@pytest.mark.parametrize("kind", [-1, 5, 100])
def test_there_are_five_kinds_of_matrix_and_six_of_vector(native: ModuleType, kind: int) -> None:
    model = new_model(native)
    with pytest.raises(ValueError, match="no such kind of matrix"):
        native.set_matrix(model, kind, 0, np.zeros(50, dtype=np.int16))
    if kind != 5:
        with pytest.raises(ValueError, match="no such kind of vector"):
            native.set_vector(model, kind, 0, np.zeros(50, dtype=np.float32))


@pytest.mark.parametrize("layer", [-1, 2, 2**31 - 1])
def test_a_layer_that_is_not_there_is_refused(native: ModuleType, layer: int) -> None:
    model = new_model(native)
    with pytest.raises(ValueError, match=rf"layer must be 0\.\.1, got {layer}"):
        native.set_matrix(model, 0, layer, np.zeros(192 * 50, dtype=np.int16))
    with pytest.raises(ValueError, match=rf"layer must be 0\.\.1, got {layer}"):
        native.set_vector(model, 0, layer, np.zeros(50, dtype=np.float32))


@pytest.mark.parametrize("kind", range(6))
def test_a_vector_of_another_size_or_type_is_refused(native: ModuleType, kind: int) -> None:
    model = new_model(native)
    with pytest.raises(ValueError, match="the vector must have"):
        native.set_vector(model, kind, 0, np.zeros(51, dtype=np.float32))
    for dtype in (np.float64, np.int32, np.int16):
        with pytest.raises(ValueError, match="values must hold floats of 4 bytes"):
            native.set_vector(model, kind, 0, np.zeros(50, dtype=dtype))


def test_the_embedding_is_set_once_and_whole(native: ModuleType) -> None:
    model = new_model(native)
    native.set_embedding(model, np.zeros(101 * 50, dtype=np.int16))
    with pytest.raises(ValueError, match="already set"):
        native.set_embedding(model, np.zeros(101 * 50, dtype=np.int16))
    with pytest.raises(ValueError, match="the embedding must have 5050 values, got 5000"):
        native.set_embedding(new_model(native), np.zeros(5000, dtype=np.int16))


def test_a_model_that_lacks_something_takes_no_pages(native: ModuleType) -> None:
    pages = [np.zeros(2 * 3 * 16 * 48, dtype=np.int16) for _ in range(2)]
    with pytest.raises(ValueError, match="was not set"):
        native.new_stepper(new_model(native), pages, 3, 16)


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 16), (3, 0), (-3, 16), (3, -16), (2, 16), (3, 17)])
def test_pages_must_be_as_many_and_as_large_as_told(num_pages: int, page_size: int) -> None:
    native = native_module()
    assert native is not None
    decoder = native_decoder(CONFIG)
    pages = [np.zeros(2 * 3 * 16 * 48, dtype=np.int16) for _ in range(2)]
    with pytest.raises(ValueError, match=r"num_pages and page_size|pages of a layer must hold"):
        native.new_stepper(decoder._model, pages, num_pages, page_size)


def test_objects_of_another_kind_are_refused(native: ModuleType) -> None:
    team, model = native.new_team(1), new_model(native)
    for call, arguments in [
        (native.new_model, (model, BEST, False, DIMENSIONS, 1e-5)),
        (native.set_matrix, (team, 0, 0, np.zeros(50, dtype=np.int16))),
        (native.set_vector, (team, 0, 0, np.zeros(50, dtype=np.float32))),
        (native.set_embedding, (None, np.zeros(50, dtype=np.int16))),
        (native.new_stepper, (team, [], 1, 1)),
        (native.step, (model, *([np.zeros(1, dtype=np.int64)] * 10))),
    ]:
        with pytest.raises((ValueError, TypeError)):
            call(*arguments)
    with pytest.raises((TypeError, BufferError)):
        native.set_matrix(model, 0, 0, [1, 2, 3])


def test_pages_that_may_not_be_written_are_refused() -> None:
    native = native_module()
    assert native is not None
    pages = [np.zeros(2 * 3 * 16 * 48, dtype=np.int16) for _ in range(2)]
    pages[1].flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        native.new_stepper(native_decoder(CONFIG)._model, pages, 3, 16)


def run_once(num_threads: int) -> None:
    pool = make_pool(CONFIG)
    decoder = native_decoder(CONFIG, num_threads=num_threads)
    run(decoder, pool.storage, [Rows(pool.lane(random_tokens(CONFIG, 20, 1)), 20)])


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_a_decoder_lets_go_of_threads_and_pages(num_threads: int) -> None:
    run_once(num_threads)  # torch starts threads of its own at its first work
    gc.collect()  # threads of engines that other tests have forgotten end with those
    before = threads_of_this_process()
    decoder = native_decoder(CONFIG, num_threads=num_threads)
    pool = make_pool(CONFIG)
    run(decoder, pool.storage, [Rows(pool.lane(random_tokens(CONFIG, 20, 1)), 20)])
    own = threads_of_this_process() - before  # those that other tests have left may end meanwhile
    assert len(own) == num_threads - 1
    storage = weakref.ref(pool.storage)
    del decoder, pool
    gc.collect()
    assert not own & threads_of_this_process()
    assert storage() is None


def threads_of_this_process() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


def test_python_goes_on_while_a_step_runs() -> None:
    """Another thread, which nothing but the step lets run, comes to its turn before the step is over."""
    config = replace(CONFIG, num_layers=8, hidden_size=256, intermediate_size=512)
    decoder, pool = native_decoder(config), make_pool(config, num_pages=80)
    inputs = step_inputs(pool.storage, [Rows(pool.lane(random_tokens(config, 1200, 1)), 1200)], [0])
    tables = inputs.layout.tables
    decoder.forward(step_inputs(pool.storage, []))
    arguments = (
        *(tensor.numpy() for tensor in (inputs.token_ids, inputs.positions, inputs.layout.slots)),
        *(tables.query_starts, tables.context_lens, tables.table_starts, tables.pages, None),
        *(inputs.readout_rows.numpy(), np.zeros(config.vocab_size, dtype=np.float32)),
    )
    gate, passed = threading.Lock(), list[bool]()

    def pass_gate() -> None:
        with gate:
            passed.append(True)

    gate.acquire()
    other = threading.Thread(target=pass_gate)
    other.start()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(100.0)
    try:
        gate.release()
        decoder._native.step(decoder._stepper, *arguments)
        assert passed
    finally:
        sys.setswitchinterval(interval_s)
        other.join()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_loads_as_its_tensors_say(family: Family, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_tiny_model(tmp_path, family, seed=3)))
    decoder = load_native(checkpoint, num_threads=2)
    config: ModelConfig = decoder.config
    pool = make_pool(config)
    logits = run(decoder, pool.storage, [Rows(pool.lane(random_tokens(config, 30, 1)), 30)])[0]
    exact = run_exactly(tmp_path, config)
    assert float((logits - exact).square().mean().sqrt()) < 0.05 * float(exact.std())


def run_exactly(directory: Path, config: ModelConfig) -> torch.Tensor:
    from engine.models.decoder import load_model

    model = load_model(open_checkpoint(str(directory)), device="cpu", dtype=torch.float32)
    pool = make_pool(config, dtype=torch.float32)
    return run(model, pool.storage, [Rows(pool.lane(random_tokens(config, 30, 1)), 30)])[0]
