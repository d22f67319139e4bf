"""Compiles kernels for the H200 without one: what the interpreter cannot show is how much of a processor they take."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

__all__ = [
    "SHARED_LIMIT",
    "CompileRequest",
    "CompiledFacts",
    "compile_kernel",
    "compile_kernels",
    "recorded_launches",
]

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that one program may take."""

Constant: TypeAlias = "int | float | bool | str | None"


@dataclass(frozen=True, slots=True)
class CompiledFacts:
    """What a compiled kernel takes.

    Attributes:
        registers: Of each thread.
        spills: Bytes of each thread's stack: registers that did not fit, or arrays indexed at run time.
        shared_bytes: Of each program.
    """

    registers: int
    spills: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One kernel to compile.

    Attributes:
        kernel: Where it is, as "module:name".
        signature: Type of every argument that is not constant: "*bf16", "i32"; ":16" behind it, as in "i32:16", if it
            is a multiple of 16, which of pointers is taken for granted.
        constexprs: Value of every other argument; None for tensors that are left out.
        num_warps: Of a program.
        num_stages: Of loops.
    """

    kernel: str
    signature: Mapping[str, str]
    constexprs: Mapping[str, Constant]
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Constant] = field(default_factory=dict)


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Constant],
    num_warps: int = 4,
    num_stages: int = 3,
) -> CompiledFacts:
    """Compiles one kernel; see `CompileRequest`.

    Args:
        fn: What `triton.jit` made; must be a name of its module.
        signature: Types of arguments.
        constexprs: Constant arguments.
        num_warps: Of a program.
        num_stages: Of loops.

    Raises:
        AssertionError: It does not compile.
    """
    name = f"{fn.fn.__module__}:{fn.fn.__name__}"
    return compile_kernels([CompileRequest(name, signature, constexprs, num_warps, num_stages)])[0]


def compile_kernels(requests: Sequence[CompileRequest]) -> list[CompiledFacts]:
    """Compiles kernels in one process of its own, where Triton does not interpret.

    Raises:
        AssertionError: One of them does not compile.
    """
    if sys.platform != "linux":
        pytest.skip("Triton compiles on Linux only")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name],
        input=json.dumps([asdict(request) for request in requests]),
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [CompiledFacts(**facts) for facts in json.loads(done.stdout)]


@contextmanager
def recorded_launches() -> Iterator[list[CompileRequest]]:
    """Nothing is launched inside, only written down for `compile_kernels`; tensors may be on the "meta" device."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    requests: list[CompileRequest] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        requests.append(_request(kernel, dict(zip(kernel.arg_names, args, strict=False)) | kwargs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", record)
        patch.setattr(JITFunction, "run", record)  # where a GPU runs the tests
        yield requests


def _request(kernel: Any, arguments: dict[str, Any]) -> CompileRequest:
    """What Triton would compile for these arguments."""
    signature: dict[str, str] = {}
    constants: dict[str, Constant] = {}
    annotations = kernel.fn.__annotations__
    for name in kernel.arg_names:
        value = arguments.pop(name)
        if isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
        elif "constexpr" in str(annotations.get(name, "")) or value is None or (value == 1 and isinstance(value, int)):
            constants[name] = value
        elif isinstance(value, int):
            signature[name] = "i32:16" if value % 16 == 0 else "i32"
        else:
            signature[name] = "fp32"
    sizes = {option: arguments.pop(option) for option in ("num_warps", "num_stages") if option in arguments}
    arguments.pop("launch_pdl", None)
    return CompileRequest(
        f"{kernel.fn.__module__}:{kernel.fn.__name__}", signature, constants, **sizes, options=arguments
    )


_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def _compile(request: CompileRequest) -> CompiledFacts:
    """Compiles in this process."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name = request.kernel.split(":")
    fn = getattr(importlib.import_module(module), name)
    types = {argument: kind.partition(":")[0] for argument, kind in request.signature.items()}
    constants = {argument: request.constexprs[argument] for argument in fn.arg_names if argument in request.constexprs}
    signature = {argument: types.get(argument, "constexpr") for argument in fn.arg_names}
    missing = [argument for argument in fn.arg_names if argument not in types and argument not in constants]
    assert not missing, f"{request.kernel}: no type and no value for {missing}"
    attributes = {
        (position,): [["tt.divisibility", 16]]
        for position, argument in enumerate(fn.arg_names)
        if (kind := request.signature.get(argument, "")).startswith("*") or kind.endswith(":16")
    }
    compiled = triton.compile(
        ASTSource(fn, signature, constants, attributes),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": request.num_warps, "num_stages": request.num_stages, **request.options},
    )
    return _facts(compiled.asm["cubin"], compiled.metadata.shared)


def _facts(cubin: bytes, shared: int) -> CompiledFacts:
    """Reads what the assembler says of a kernel; the shared memory that is asked for at launch is known to Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found, usage
    return CompiledFacts(int(found[1]), int(found[2]), shared)


if __name__ == "__main__":
    json.dump([asdict(_compile(CompileRequest(**request))) for request in json.load(sys.stdin)], sys.stdout)
