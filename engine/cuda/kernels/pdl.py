"""Programmatic dependent launch: a kernel that starts before the one in front of it has ended.

Such a kernel may load what no kernel of its step writes (weights, block tables, older K and V), and must `wait` before
it reads anything else or writes at all. `launch_dependents` lets the kernel behind it start. Both need Hopper (compute
capability 9.0) and `launch_pdl=True` at the launch; CUDA C++ Programming Guide, "Programmatic Dependent Launch".
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["launch_dependents", "wait"]


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until everything in front has ended and its writes are seen; nothing without PDL."""
    if PDL:
        gdc_wait()


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Lets the kernel behind start once all programs have come here; nothing without PDL."""
    if PDL:
        gdc_launch_dependents()
