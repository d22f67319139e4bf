"""Adapters that a script names."""

from __future__ import annotations

from extensions.programs.faults import fault, invalid
from extensions.programs.scope import RunScope


def adapter_names(scope: RunScope) -> list[str]:
    """Adapters that are loaded."""
    return [one.name for one in scope.engine.info.adapters]


def read_adapter(adapter: object, scope: RunScope) -> str | None:
    """The adapter of a context: None for that of the request, empty text for the model alone.

    Raises:
        ValueError: It is no text (`invalid_argument`).
        RuntimeError: None of that name is loaded (`capability_missing`).
    """
    if adapter is None:
        return None
    if not isinstance(adapter, str):
        raise invalid("adapter must be the name of an adapter, or None")
    names = adapter_names(scope)
    if adapter and adapter not in names:
        there = f"it has {', '.join(names)}" if names else "it has none"
        raise fault("capability_missing", f"this server has no adapter {adapter[:80]!r}; {there}")
    return adapter
