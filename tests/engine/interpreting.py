"""What Triton's interpreter does otherwise than a GPU: loops to a bound that a kernel works out, and truth values."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_more(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))


def _splat(_: Any, ret_ty: Any, arg: Any) -> Any:
    return interpreter.TensorHandle(np.full(ret_ty.shape, arg.data, dtype=arg.data.dtype), arg.dtype.scalar)


def mend_interpreter() -> None:
    """Lets scalars, which the interpreter keeps as arrays of one element, be bounds of loops, and meet blocks.

    NumPy 2.4 makes no number of such an array any more; Triton 3.6 relies on it in one place. What compares two numbers
    it takes for a number when it is spread over a block.
    """
    interpreter._patch_lang_tensor = _patch_more
    interpreter.InterpreterBuilder.create_splat = _splat
