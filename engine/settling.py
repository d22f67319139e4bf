"""Readies the interpreter of a process for steps of a few milliseconds, or less."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""How long a thread of the engine process may keep another from Python."""

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100
"""Objects made before the young are looked through for garbage, and how often before their elders are too."""


def settle() -> None:
    """To be called once everything is loaded.

    What loading left lives as long as the process: looking through it for garbage would stop a step for 50 ms. A wide
    step makes hundreds of objects that reference counts free at once; with the interpreter's own thresholds they would
    set off a collection every step or so. And a device that comes back from its step gets the interpreter within
    `SWITCH_INTERVAL_S`, whatever the host is at.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
