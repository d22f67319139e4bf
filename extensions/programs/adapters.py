"""Adapters that a script names."""

from __future__ import annotations

from collections.abc import Sequence

from engine.programs.adapters import PARTS, bind_adapter
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.purposes import ADAPTER
from engine.request import SiteChange
from extensions.programs.faults import fault, invalid
from extensions.programs.rows import integers
from extensions.programs.samplers import ScriptProgram, make_program
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


def read_change(
    scope: RunScope, site: object, adapter: ScriptProgram | str, layers: Sequence[int] | None
) -> SiteChange:
    """Reads the arguments of a pass's `adapter`.

    Raises:
        ValueError: There is no such site, or what is to change it is none (`invalid_argument`, `program_invalid`).
        RuntimeError: The steps of this server have no adapters, or not that one (`capability_missing`).
    """
    info = scope.engine.info
    if not info.sites:
        raise fault(
            "capability_missing",
            "the steps of this server have no adapters: start it with one, with --step torch, or with "
            "--attention-scores on, which lets the native step hold the weights twice",
        )
    if not isinstance(site, str) or site not in info.sites:
        raise invalid(f"site must be one of {', '.join(info.sites)}")
    chosen = [] if layers is None else integers(layers, "layers")
    if isinstance(adapter, str) and "def " in adapter:
        adapter = make_program(adapter, {}, info.vocab_size)
    if not isinstance(adapter, ScriptProgram):
        named = read_adapter(adapter, scope)
        if named is None:
            raise invalid("adapter must be the name of an adapter, or a program with a function `adapter`")
        return SiteChange(site, named, None, chosen)
    adapter.check(ADAPTER)
    _check_expression(scope, site, adapter)
    return SiteChange(site, "", adapter.spec, chosen)


def _check_expression(scope: RunScope, site: str, program: ScriptProgram) -> None:
    spec = program.spec
    known = [f"{one.name}.{part}" for one in scope.engine.info.adapters for part in PARTS.get(one.kind, ())]
    parts = [(name, value) for name, value in spec.parameters.items() if isinstance(value, str)]
    for name, value in parts:
        if value not in known:
            there = ", ".join(known) or "none"
            raise invalid(f"parameter `{name}` names no part of a loaded adapter (there are: {there})")
    if parts:
        return  # the engine knows how large they are
    try:
        bind_adapter(spec.source, spec.parameters, *scope.engine.info.sites[site])
    except ProgramMisused as error:
        raise invalid(str(error)) from None
    except ProgramInvalid as error:
        raise fault("program_invalid", str(error)) from None
