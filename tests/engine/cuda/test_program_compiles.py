"""What kernels that are written for device programs take of the H200's processors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cuda.program_lanes import ProgramLanes
from engine.cuda.program_passes import KernelPasses
from engine.cuda.program_table import ProgramTable
from engine.programs.binding import bind
from engine.programs.torch_form import TorchProgram
from tests.engine.cuda.amounts import ON_GPU
from tests.engine.cuda.compiling import CompiledFacts, CompileRequest, compile_kernels, recorded_launches
from tests.engine.cuda.test_program_passes import EVERY_OPERATION, HEAD, graph_of, step_of

CPU = torch.device("cpu")
SIZE = 151_936

pytestmark = pytest.mark.skipif(ON_GPU, reason="launches are written down by the interpreter")

MODULE = """
import triton
import triton.language as tl
from engine.cuda.kernels.pdl import *
from engine.cuda.kernels.program_math import *

"""


def launched(
    launch: Callable[[], object], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Sequence[CompileRequest]:
    """What is launched, as kernels of a module that another process can load."""
    functions = {}
    with recorded_launches() as requests, pytest.MonkeyPatch.context() as patch:  # which is undone first
        from triton.runtime.interpreter import InterpretedFunction

        record = InterpretedFunction.run

        def run(kernel: InterpretedFunction, *args: object, **kwargs: object) -> None:
            functions[kernel.fn.__name__] = inspect.getsource(kernel.fn)
            record(kernel, *args, **kwargs)

        patch.setattr(InterpretedFunction, "run", run)
        launch()
    source = MODULE + "".join(f"\n@triton.jit\n{text}\n" for text in functions.values())
    (directory / "written.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return [_as_launched(request) for request in requests]


def _as_launched(request: CompileRequest) -> CompileRequest:
    """A kernel is compiled once for all steps from row to row."""
    steps = {name for name in (*request.signature, *request.constexprs) if name.startswith("step")}
    return replace(
        request,
        kernel="written:" + request.kernel.partition(":")[2],
        signature={**request.signature, **dict.fromkeys(steps, "i32")},
        constexprs={name: value for name, value in request.constexprs.items() if name not in steps},
    )


def assert_small(found: Sequence[CompiledFacts], most_registers: int) -> None:
    assert found
    for facts in found:
        assert facts.spills == 0
        assert facts.registers <= most_registers


def test_groups_fit_into_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    green = f"{HEAD}    green = hash_uniform(prev, vocab) < scale\n"
    green += "    return gumbel_argmax(logits + where(green, 2.0, 0.0), key)\n"
    noted = [
        body.replace("probe.x", f"probe.x{at}")
        for at, body in enumerate(EVERY_OPERATION.values())
        if "state" not in body and "whole" not in body
    ]
    programs = [
        HEAD + "".join(f"    {body}\n" for body in noted[at::2]) + "    return gumbel_argmax(logits * scale, key)\n"
        for at in range(2)
    ]

    def launch() -> None:
        for source in (green, *programs):
            program = TorchProgram(graph_of(source, SIZE), SIZE, CPU, passes=KernelPasses(SIZE, CPU))
            program.run(step_of(SIZE, 2, 1, CPU), defer=True)

    requests = launched(launch, tmp_path, monkeypatch)
    facts = compile_kernels(requests)
    assert_small(facts[:1], 64)
    assert_small(facts, 255)


def test_what_moves_values_of_lanes_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
state.level = 0.5

def sample(logits, key, prev, step, history, rate):
    state.level = state.level * 0.5 + rate * float(prev % 7) + float(step) + uniform(key)
    return where(state.level > 1.0, history[-7], argmax(logits))
"""
    table = ProgramTable(bind(source, {"rate": 0.5}, SIZE), 4, SIZE, CPU, 4096)

    def launch() -> None:
        rows = torch.zeros(2, dtype=torch.int32)
        tokens = torch.zeros(4, dtype=torch.int64)
        for is_alone in (True, False):
            lanes = ProgramLanes(table, is_alone=is_alone)
            read = lanes.read(torch.zeros((2, SIZE)), rows, rows, 64)
            for returned in (None, tokens[:2]):
                lanes.keep(rows, rows, read, {"level": torch.zeros((2, 1))}, tokens[:2], tokens, returned)

    requests = launched(launch, tmp_path, monkeypatch)
    assert len(requests) == 6
    assert_small(compile_kernels(requests), 64)
