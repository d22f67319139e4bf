"""What a server can do, by the names that programs ask for: in their header before they run, or while they do."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.request import EngineInfo
from extensions.errors import CAPABILITY_MISSING, CapabilityMissing, Diagnostic

if TYPE_CHECKING:
    from extensions.programs.world import World

EVERYWHERE = ("contexts", "constraints", "steps", "distributions", "scores", "device_programs", "forward", "leases")
"""What every server can do beyond generating."""

OF_ENGINE = ("adapters", "site_adapters", "attention")
"""What depends on the model and on how it is served."""

OF_WORLD = ("tools", "store", "messages", "inbox", "children", "prefixes")
"""Doors out of a run, see `World`."""

KNOWN = (*EVERYWHERE, *OF_ENGINE, *OF_WORLD)
"""All that there is a name for."""


@dataclass(frozen=True, slots=True)
class Need:
    """A capability that the header of a script names, and where it stands there.

    Attributes:
        name: Of the capability.
        line, column: Of the script, from 1.
        end_line, end_column: Behind it.
    """

    name: str
    line: int
    column: int
    end_line: int
    end_column: int

    def problem(self, message: str, rule: str = "") -> Diagnostic:
        """Something that is wrong with it."""
        return Diagnostic(
            line=self.line,
            column=self.column,
            end_line=self.end_line,
            end_column=self.end_column,
            message=message,
            rule=rule,
        )


def capabilities(info: EngineInfo, world: World) -> list[str]:
    """Names of what is there for a run.

    Args:
        info: Of the engine.
        world: What the run reaches beyond the model.
    """
    there = {"adapters": info.adapters, "site_adapters": info.sites, "attention": info.reads_attention}
    return [*EVERYWHERE, *(name for name in OF_ENGINE if there[name]), *world.capabilities]


def check_needs(needs: Sequence[Need], there: Sequence[str]) -> None:
    """Refuses a program that needs what is not there.

    Raises:
        CapabilityMissing: It does; each with its place in the header.
    """
    known = ", ".join(there)
    missing = [
        one.problem(f"there is no {one.name!r} for it here; there are {known}", CAPABILITY_MISSING)
        for one in needs
        if one.name not in there
    ]
    if missing:
        raise CapabilityMissing(missing)


def read_needs(node: ast.expr) -> tuple[list[Need], list[Diagnostic]]:
    """Reads the header's list of them.

    Args:
        node: A literal.

    Returns:
        What is needed, and what is wrong with the list.
    """
    entries = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    needs: list[Need] = []
    wrong: list[Diagnostic] = []
    for entry in entries:
        name = entry.value if isinstance(entry, ast.Constant) else None
        need = _need(entry, name if isinstance(name, str) else "")
        if entry is node or not isinstance(name, str):
            wrong.append(need.problem(f"capabilities must be a list of names; there are {', '.join(KNOWN)}"))
        elif name not in KNOWN:
            message = f"there is no capability {name[:80]!r}; there are {', '.join(KNOWN)}"
            wrong.append(need.problem(message, CAPABILITY_MISSING))
        elif name in (one.name for one in needs):
            wrong.append(need.problem(f"capabilities names {name!r} twice"))
        else:
            needs.append(need)
    return needs, wrong


def _need(node: ast.expr, name: str) -> Need:
    end_line, end_offset = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return Need(name, node.lineno, node.col_offset + 1, end_line, end_offset + 1)
