"""What a program reaches beyond the model: made by whoever starts the run, for the one who pays for it.

The sandbox sees none of it directly: `lm` and its handles do, and say `capability_missing` for what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from extensions.programs.doors import Inbox, Mail, ProgramSource, ValueStore
from extensions.tools.catalog import ToolCatalog

if TYPE_CHECKING:
    from extensions.programs.prefixes import Prefixes


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Doors out of a run; what is None is not there.

    Attributes:
        tools: Tools of the server, and what may be fetched.
        values: What its owner's programs keep.
        mail: Messages among its owner's programs.
        inbox: What the client says to it while it runs.
        children: Programs that it may start.
        prefixes: Histories that outlive it.
    """

    tools: ToolCatalog | None = None
    values: ValueStore | None = None
    mail: Mail | None = None
    inbox: Inbox | None = None
    children: ProgramSource | None = None
    prefixes: Prefixes | None = None

    @property
    def capabilities(self) -> list[str]:
        """Names that `lm.model.require` knows for what is there."""
        doors = {
            "tools": self.tools,
            "store": self.values,
            "messages": self.mail,
            "inbox": self.inbox,
            "children": self.children,
            "prefixes": self.prefixes,
        }
        return [name for name, door in doors.items() if door is not None]
