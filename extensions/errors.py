"""Errors of the layer between the gateway and the engine.

    ExtensionError
    └── GenerationClosed     the generation was closed while somebody still waited for its next step

Errors of the engine (`engine.errors`) pass through unchanged.
"""

from __future__ import annotations


class ExtensionError(Exception):
    """Root of everything this package raises by itself."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class GenerationClosed(ExtensionError):
    """Someone else closed the generation; its engine work has ended and nothing more will come."""
