"""Every microsecond of a step belongs to one kernel, or to none."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.step_profile import Span, account, short_name, spans_of, table_of


def kernel(name: str, start: float, end: float, grid: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    arguments = {} if grid is None else {"grid": grid}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "args": arguments, **fields}


def test_kernels_that_overlap_add_what_they_put_off() -> None:
    found = account([Span("b", 8, 14), Span("a", 0, 10), Span("inside", 9, 12), Span("a", 20, 21)])
    assert {name: (share.count, share.busy_us, share.adds_us) for name, share in found.shares.items()} == {
        "a": (2, 11, 11),
        "b": (1, 6, 4),
        "inside": (1, 3, 0),
    }
    assert found.idle_us == 6
    assert found.total_us == 21


def test_nothing_takes_no_time() -> None:
    assert account([]).total_us == 0


def test_kernels_of_one_name_are_told_apart_by_their_grids() -> None:
    events = [
        kernel("gemv", 0, 2, [8, 1, 1]),
        kernel("gemv", 2, 3, [16, 1, 1]),
        kernel("void at::native::copy<float, 4>(float*)", 3, 4, [1, 1, 1]),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 9},
        {"ph": "M", "name": "process_name"},
        kernel("Memcpy HtoD (Pinned -> Device)", 4, 5, cat="gpu_memcpy"),
    ]
    assert [(span.name, span.start_us, span.end_us) for span in spans_of(events)] == [
        ("gemv 8x1x1", 0, 2),
        ("gemv 16x1x1", 2, 3),
        ("at::native::copy", 3, 4),
        ("Memcpy HtoD", 4, 5),
    ]


def test_of_a_cpus_operations_the_innermost_count() -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "ts": 0, "dur": 10, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::t", "ts": 1, "dur": 2, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 4, "dur": 5, "tid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 2, "dur": 1, "tid": 2},
    ]
    assert sorted(span.name for span in spans_of(events)) == ["aten::add", "aten::mm", "aten::t"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_norm_kernel", "_norm_kernel"),
        ("void cutlass::Kernel2<cutlass::gemm<1, 2>>(Params)", "cutlass::Kernel2"),
        ("<anonymous>", "<anonymous>"),
        ("x" * 80, "x" * 60),
    ],
)
def test_a_kernel_has_a_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_table_shows_what_adds_most_and_the_rest_in_one_line() -> None:
    kernels = [
        {"name": name, "count": 1.0, "busy_us": adds, "adds_us": adds} for name, adds in (("a", 6.0), ("b", 3.0))
    ]
    row = {"width": 1, "prefill": False, "step_us": 12.0, "traced_step_us": 10.0, "idle_us": 1.0, "kernels": kernels}
    lines = table_of(row, 1).rows
    assert [line[0] for line in lines] == ["a", "1 others", "nothing runs"]
    assert [line[-1] for line in lines] == [60.0, 30.0, 10.0]
