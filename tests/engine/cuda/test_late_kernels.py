"""Kernels that are met while serving, told by the hook that Triton calls for each that it loads."""

import logging
from pathlib import Path

import pytest

from engine.cuda.late_kernels import MAX_NAMED
from tests.engine.cuda.test_loop import pretend, requests
from tests.equivalence.harness import open_loop, run
from tests.tiny_models import write_tiny_model

knobs = pytest.importorskip("triton.knobs")


def load(name: str) -> None:
    """What Triton does once a kernel lies on the device."""
    knobs.runtime.kernel_load_end_hook(None, None, name, {}, "0" * 64)


@pytest.mark.usefixtures("coarse_cuts")
def test_what_is_loaded_while_serving_is_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_tiny_model(tmp_path, "qwen3", num_hidden_layers=1, max_position_embeddings=64)
    pretend(monkeypatch)
    load("before")
    with open_loop(model, max_num_seqs=3, step="cuda", attention="sdpa") as loop:
        run(loop, requests()[:1])
        assert loop.stats.num_late_kernels == 0
        with caplog.at_level(logging.WARNING):
            for number in range(MAX_NAMED + 5):
                load(f"kernel_{number}")
        assert loop.stats.num_late_kernels == MAX_NAMED + 5
        assert "kernel_0 (000000000000)" in caplog.text
        assert f"kernel_{MAX_NAMED - 1} " in caplog.text
        assert f"kernel_{MAX_NAMED} " not in caplog.text
    load("after")
    assert loop.stats.num_late_kernels == MAX_NAMED + 5


def test_a_step_on_the_cpu_has_none(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, "qwen3", num_hidden_layers=1, max_position_embeddings=64)
    with open_loop(model, max_num_seqs=3) as loop:
        load("anything")
        assert loop.stats.num_late_kernels == 0
