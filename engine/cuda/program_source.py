"""Kernels whose source is written for one program: parsed by Triton like any other, and shared where it is the same.

A kernel is named by what it does, so that the same program finds what was compiled for it before, in this process and
in Triton's cache on disk.
"""

from __future__ import annotations

import hashlib
import linecache
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from engine.cuda.kernels import pdl, program_math
from engine.cuda.late_kernels import MADE_LATER

MOST_KERNELS = 256
"""Whose source is remembered; others are in use as long as somebody has them."""

_kernels: OrderedDict[str, Any] = OrderedDict()
_lock = threading.Lock()


def kernel(
    what: str,
    parameters: Sequence[str],
    constants: Sequence[str],
    lines: Sequence[str],
    *,
    changing: Sequence[str] = (),
) -> Any:
    """What `triton.jit` makes of a body, which reads and writes when everything in front of it has ended.

    It has one more constant, `PDL`: whether it may start before, see `engine.cuda.kernels.pdl`.

    Args:
        what: Part of its name.
        parameters: Names of tensors and numbers.
        constants: Names of what it is compiled for, behind them.
        lines: Of the body; names are those of `program_math`, and `tl`.
        changing: Parameters whose value is no reason to compile it again.
    """
    head = ", ".join([*parameters, *[f"{name}: tl.constexpr" for name in (*constants, "PDL")]])
    body = "".join(f"    {line}\n" for line in ("wait(PDL)", "launch_dependents(PDL)", *lines))
    digest = hashlib.sha256(f"{head}\n{body}".encode()).hexdigest()[:16]
    name = f"{MADE_LATER}{what}_{digest}"
    with _lock:
        found = _kernels.get(name)
        if found is None:
            found = _kernels[name] = _compiled(name, f"def {name}({head}):\n{body}", list(changing))
        _kernels.move_to_end(name)
        while len(_kernels) > MOST_KERNELS:
            oldest, _ = _kernels.popitem(last=False)
            linecache.cache.pop(_file_of(oldest), None)
    return found


def _compiled(name: str, source: str, changing: list[str]) -> Any:
    file = _file_of(name)
    # Triton reads the source of a function where debuggers and tracebacks do.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": __name__, "tl": tl, **_operations()}
    exec(compile(source, file, "exec"), namespace)
    return triton.jit(namespace[name], do_not_specialize=changing)


def _file_of(name: str) -> str:
    return f"<{name}>"


def _operations() -> Mapping[str, Any]:
    return {name: getattr(module, name) for module in (pdl, program_math) for name in module.__all__}
