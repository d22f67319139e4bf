"""Adapters as expressions: the torch form against the meaning, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from engine.programs.adapters import MAX_NUMBERS, bind_adapter, read_values
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.reference import result
from engine.programs.torch_form import DTYPES, BatchValues, TorchProgram
from engine.programs.values import StepValues
from engine.request import Matrix

K, N, R = 6, 5, 3
HEAD = "def adapter(x, y, a, b, square, gain, scale, count=2):\n"
Draw = st.DrawFn


def given_values(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        found: list[list[float]] = (rng.integers(-8, 8, (rows, columns)) / 8).tolist()
        return found

    return read_values(
        {
            "a": matrix(K, R),
            "b": matrix(R, N),
            "square": matrix(N, N),
            "gain": (rng.integers(-8, 8, N) / 4).tolist(),
            "scale": float(rng.integers(-8, 8) / 4),
        }
    )


def expression(draw: Draw, wide: int | None, depth: int) -> str:
    """An expression with this many numbers a row; None for one."""
    leaves: dict[int | None, list[str]] = {
        None: ["scale", "0.5", "count"],
        K: ["x"],
        N: ["y", "gain", "(x @ a) @ b"],
        R: ["(x @ a)"],
    }
    if depth == 0:
        return draw(st.sampled_from(leaves[wide]))

    def sub(width: int | None = wide) -> str:
        return expression(draw, width, depth - 1)

    choices = [
        lambda: f"({sub()} {draw(st.sampled_from('+-*'))} {sub(None)})",
        lambda: f"where({sub()} > {sub(None)}, {sub()}, {sub()})",
        lambda: f"clamp({sub()}, -4.0, 4.0)",
        lambda: f"({sub()} + {sub()})",
        lambda: f"exp(-abs({sub()}))",
    ]
    if wide is None:
        choices += [lambda: f"sum({sub(N)})", lambda: f"({sub(N)} @ gain)", lambda: f"({sub(R)} @ (x @ a))"]
    elif wide == N:
        choices += [lambda: f"({sub(N)} @ square)", lambda: f"({sub(R)} @ b)", lambda: f"softmax({sub(N)})"]
    elif wide == R:
        choices += [lambda: f"({sub(K)} @ a)"]
    return draw(st.sampled_from(choices))()


@st.composite
def expressions(draw: Draw) -> str:
    return f"{HEAD}    z = {expression(draw, R, 2)}\n    return y + {expression(draw, N, 3)} + z @ b\n"


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(source=expressions(), seed=st.integers(0, 10**6), rows=st.integers(1, 5))
def test_random_expressions_give_the_same_within_a_tolerance(source: str, seed: int, rows: int) -> None:
    values = given_values(seed)
    try:
        bound = bind_adapter(source, values, K, N)
    except ProgramInvalid as error:
        assume("values" not in error.message and "deep" not in error.message)
        raise
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-8, 8, (rows, n)).astype(np.float32) / 8 for n in (K, N))

    def plain(value: Any) -> Any:
        if isinstance(value, Matrix):
            return np.frombuffer(value.values, "<f4").reshape(value.rows, value.columns)
        return np.asarray(value)

    parameters = {name: plain(value) for name, value in bound.parameters.items()}
    placed = {
        name: torch.tensor(parameters[name], dtype=DTYPES[kind.kind]).reshape(
            (kind.rows, kind.axis) if kind.rows is not None else (1, -1)  # type: ignore[arg-type]
        )
        for name, kind in bound.types
    }
    program = TorchProgram(bound.graph, 1, torch.device("cpu"), native=False)
    found = program.value(
        BatchValues(lanes=(), others={"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, parameters=placed)
    ).expand(rows, N)
    for row in range(rows):
        others = {"x": x[row], "y": y[row]}
        wanted: Any = result(bound.graph, StepValues(vocab_size=0, others=others), parameters)
        np.testing.assert_allclose(found[row].numpy(), wanted, rtol=1e-4, atol=1e-4)


REFUSED: dict[str, tuple[str, int, int, str]] = {
    "of another width": ("def adapter(x, y):\n    return x\n", 2, 12, "what comes out, f32[5]; this is f32[6]"),
    "one number": ("def adapter(x, y):\n    return sum(y)\n", 2, 12, "f32[5]; this is f32"),
    "sites that do not go together": ("def adapter(x, y):\n    return x + y\n", 2, 12, "cannot combine"),
    "a matrix of other rows": ("def adapter(x, y, a):\n    return y + y @ a\n", 2, 16, "as many numbers on the left"),
    "a matrix on the left": ("def adapter(x, y, a):\n    return y + a @ x\n", 2, 16, "a matrix stands on the right"),
    "a sum with a matrix": ("def adapter(x, y, a):\n    return y + sum(a)\n", 2, 16, "can only be multiplied by"),
    "a matrix returned": ("def adapter(x, y, a):\n    return a\n", 2, 12, "f32[5]; this is f32[6, 3]"),
    "a probe": ("def adapter(x, y):\n    probe.x = sum(x)\n    return y\n", 2, 5, "notes nothing down"),
    "a state": ("state.x = 0\ndef adapter(x, y):\n    return y\n", 1, 11, "no state"),
    "logits": ("def adapter(x, y):\n    return y + logits\n", 2, 16, "does not know `logits`"),
    "something else": ("def sample(logits):\n    return 1\n", 1, 1, "here `adapter` is needed"),
    "too much": (
        "def adapter(x, y):\n    for i in range(99):\n        y = y * x[0]\n    return y\n",
        3,
        17,
        "only the history can be indexed",
    ),
    "too many values": (
        "def adapter(x, y):\n    for i in range(99):\n        y = y * 2.0 + i\n    return y\n",
        1,
        1,
        "64 are allowed",
    ),
}


@pytest.mark.parametrize(("source", "line", "column", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_expression_is_refused_with_its_place(source: str, line: int, column: int, reason: str) -> None:
    values = {"a": Matrix(K, R, bytes(4 * K * R))} if ", a)" in source else {}
    with pytest.raises(ProgramInvalid) as caught:
        bind_adapter(source, values, K, N)
    assert reason in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "must be a finite number"),
        ([[]], "equally long"),
        ([[1.0], [1.0, 2.0]], "equally long"),
        ([[1.0, "a"]], "finite numbers"),
        ([[1.0], 2.0], "must be a finite number"),
        ([float("nan")], "must be a finite number"),
        ([[1e300]], "finite numbers"),
        (None, "must be a finite number"),
        ([[0.0] * 1024] * (MAX_NUMBERS // 1024 + 1), "are allowed"),
    ],
)
def test_what_it_is_given_is_bounded_and_of_numbers(value: Any, reason: str) -> None:
    with pytest.raises(ProgramMisused, match=reason):
        read_values({"a": value})


def test_an_expression_that_takes_longer_than_its_site_is_refused() -> None:
    source = "def adapter(y, a):\n" + "    y = y @ a\n" * 9 + "    return y\n"
    square = Matrix(256, 256, bytes(4 * 256 * 256))
    with pytest.raises(ProgramInvalid, match="for a row"):
        bind_adapter(source, {"a": square}, 512, 256)
    assert bind_adapter(source, {"a": square}, 4096, 256).function == "adapter"


def test_all_that_it_is_given_together_is_bounded() -> None:
    half = [[0.0] * 1024] * (MAX_NUMBERS // 2048 + 1)
    with pytest.raises(ProgramMisused, match="together"):
        read_values({"a": half, "b": half})
