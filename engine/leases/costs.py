"""What it takes to have KV back: measured, by computing it again and by copying it from host memory."""

from __future__ import annotations

SMOOTHING = 0.2
"""How much of a new measurement goes into the estimate."""


class RestoreCosts:
    """Estimates that follow what steps and copies really took.

    Args:
        context_weight: Tokens of context whose attention costs as much as the rest of the model does per token.
    """

    def __init__(self, context_weight: float = 16_384.0) -> None:
        self._token_s = 1e-3
        self._byte_s = 1e-9
        self._context_weight = context_weight

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """A step that computed little else took so long for so many prompt tokens."""
        if num_tokens > 0 and seconds > 0:
            self._token_s += (seconds / num_tokens - self._token_s) * SMOOTHING

    def note_copy(self, num_bytes: int, seconds: float) -> None:
        """So many bytes were copied in so long."""
        if num_bytes > 0 and seconds > 0:
            self._byte_s += (seconds / num_bytes - self._byte_s) * SMOOTHING

    def compute_s(self, start: int, stop: int) -> float:
        """Seconds to compute the tokens start..stop-1 of a history."""
        return (stop - start) * self._token_s * (1.0 + (start + stop) / 2 / self._context_weight)

    def copy_s(self, num_bytes: int) -> float:
        """Seconds to copy so many bytes from host memory."""
        return num_bytes * self._byte_s
