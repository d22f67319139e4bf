"""Triton's interpreter beside newer NumPy: loops to a bound that a kernel works out."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_more(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))


def mend_interpreter() -> None:
    """Lets scalars, which the interpreter keeps as arrays of one element, be bounds of loops.

    NumPy 2.4 makes no number of such an array any more; Triton 3.6 relies on it in one place.
    """
    interpreter._patch_lang_tensor = _patch_more
