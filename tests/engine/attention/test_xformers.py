"""What xformers' split-K kernel is handed: lanes of equally many rows that see what they should."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.xformers import XFormersBackend
from engine.attention.xformers_library import MAX_ROWS, VERSION, PagedLanes, XFormers
from engine.errors import ModelLoadError
from tests.engine.attention.test_contract import DEVICE, Step, dense, make_step

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="plain arithmetic stands for the kernels, on a CPU")


class SlowSplitK:
    """The kernel in plain arithmetic, with its limits.

    Attributes:
        calls: Rows a lane and lanes of each call.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def attend(self, query: torch.Tensor, layer: torch.Tensor, lanes: PagedLanes, scale: float) -> torch.Tensor:
        """See `SplitK`."""
        num_rows, num_lanes = lanes.num_rows, len(lanes.ends)
        self.calls.append((num_rows, num_lanes))
        assert 1 <= num_rows <= MAX_ROWS
        assert lanes.starts is None or (num_rows == 1 and len(lanes.starts) == num_lanes + 1)
        assert lanes.query_starts.tolist() == list(range(0, len(query) + 1, num_rows))
        assert lanes.tables.dtype == lanes.ends.dtype == lanes.query_starts.dtype == torch.int32
        outputs = []
        for lane in range(num_lanes):
            end = int(lanes.ends[lane])
            pages = lanes.tables[lane, : -(-end // layer.shape[2])].long()
            keys, values = layer[:, pages].flatten(1, 2)[:, :end].float()
            sees = end - num_rows + torch.arange(num_rows)[:, None] >= torch.arange(end)
            if lanes.starts is not None:
                sees &= torch.arange(end) >= lanes.starts[lane]
            outputs.append(_attend(query[lane * num_rows : (lane + 1) * num_rows], keys, values, sees, scale))
        return torch.cat(outputs)

    def attend_masked(self, query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        """See `SplitK`."""
        keys, values = kv.float()
        return _attend(query, keys, values, mask, scale)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sees: torch.Tensor, scale: float
) -> torch.Tensor:
    scores = torch.einsum("ngrd,cgd->grnc", query.float(), keys) * scale
    weights = scores.masked_fill(~sees, float("-inf")).softmax(-1)
    return torch.einsum("grnc,cgd->ngrd", weights, values).to(query.dtype)


@pytest.fixture(autouse=True)
def own_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test tells libraries of this process where to keep kernels."""
    for variable in ("WYE_HOME", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"):
        monkeypatch.setenv(variable, str(tmp_path))


def attend(step: Step, window: int | None = None) -> SlowSplitK:
    """A layer of a step, against plain arithmetic."""
    library = SlowSplitK()
    backend = XFormersBackend(library)
    backend.prepare(step.storage, step.query.shape[1], window)
    plan = backend.plan(step.layout, step.storage)
    output = backend.run(1, step.query, step.storage, plan, scale=0.3, sliding_window=window)
    torch.testing.assert_close(output.float(), dense(step, 1, 0.3, window).float(), atol=0.02, rtol=0.01)
    return library


@pytest.mark.parametrize("window", [None, 7, 100])
def test_prefill_chunks_decoding_and_masked_lanes_of_one_step(window: int | None) -> None:
    lanes = [(1, 1), (64, 80), (1, 300), (6, 90), (33, 33), (0, 30), (1, 17), (5, 40), (5, 5)]
    attend(make_step(lanes=lanes, dtype=torch.bfloat16, masked=frozenset({3})), window)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_steps(data: st.DataObject) -> None:
    lanes = data.draw(
        st.lists(
            st.tuples(st.integers(1, 60), st.integers(0, 200)).map(lambda lane: (lane[0], lane[0] + lane[1])),
            min_size=1,
            max_size=6,
        )
    )
    step = make_step(
        lanes=lanes,
        page_size=data.draw(st.sampled_from([16, 32])),
        num_kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.sampled_from([1, 2, 5])),
        dtype=torch.bfloat16,
        masked=data.draw(st.frozensets(st.integers(0, len(lanes) - 1), max_size=2)),
        seed=data.draw(st.integers(0, 100)),
    )
    attend(step, data.draw(st.none() | st.integers(1, 200)))


def test_decoding_lanes_are_one_call_and_a_prefill_one_of_blocks() -> None:
    assert attend(make_step(lanes=[(1, 40), (1, 90), (1, 3)], dtype=torch.bfloat16)).calls == [(1, 3)]
    assert attend(make_step(lanes=[(1, 40), (40, 90), (16, 16)], dtype=torch.bfloat16)).calls == [(1, 1), (16, 4)]


def test_with_a_window_every_row_is_a_lane() -> None:
    assert attend(make_step(lanes=[(1, 40), (40, 90)], dtype=torch.bfloat16), 9).calls == [(1, 41)]


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        ({"head_dim": 80}, "heads of 16, .* numbers in bfloat16 or float16, not of 80"),
        ({"dtype": torch.float32}, "not of 16 in float32"),
        ({"page_size": 8}, "pages of 16 tokens or a multiple, not of 8"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(options: dict[str, object], meaning: str) -> None:
    step = make_step(lanes=[(1, 1)], **{"dtype": torch.bfloat16} | options)  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match=meaning):
        XFormersBackend(SlowSplitK()).prepare(step.storage, 6, None)


def test_a_missing_library_and_another_version_are_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xformers", None)
    with pytest.raises(ModelLoadError, match=rf"does not load .*--no-deps xformers=={VERSION}"):
        XFormers()
    fmha = SimpleNamespace(attn_bias=None, common=None, triton_splitk=None)
    for name, module in {
        "xformers": SimpleNamespace(__version__="9.9", ops=SimpleNamespace(fmha=fmha)),
        "xformers.ops": SimpleNamespace(fmha=fmha),
        "xformers.ops.fmha": fmha,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ModelLoadError, match=rf"made for xformers {VERSION}, but 9\.9 is installed"):
        XFormers()
