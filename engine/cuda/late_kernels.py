"""Kernels that a device meets for the first time while it serves: some step waits until each is compiled and loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

MADE_LATER = "program_"
"""How names of kernels begin that are written for device programs: they come with these, and no step waits for them."""

MAX_NAMED = 20
"""Kernels that the log names; the rest are counted."""


class LateKernels:
    """Counts what Triton loads from now on, kernels of device programs left out, and names the first of it.

    An engine that has warmed up (`engine.warm_up`) should load nothing more. What it does load is a form that warming
    up left out, and tells where latency came from that nothing else explains.

    Attributes:
        count: Kernels loaded.
    """

    def __init__(self) -> None:
        from triton import knobs

        self.count = 0
        self._hooks = knobs.runtime.kernel_load_end_hook
        self._hooks.add(self._loaded)

    def close(self) -> None:
        """Counts no more. Idempotent."""
        self._hooks.remove(self._loaded)

    def _loaded(
        self,
        module: object | None,
        function: Callable[..., object] | None,
        name: str,
        metadata_group: dict[str, str],
        hash: str,  # Triton's name
    ) -> None:
        if name.startswith(MADE_LATER):
            return
        self.count += 1
        if self.count <= MAX_NAMED:
            log.warning("a step waited for a kernel that the start did not meet: %s (%s)", name, hash[:12])
        if self.count == MAX_NAMED:
            log.warning("further such kernels are only counted")
