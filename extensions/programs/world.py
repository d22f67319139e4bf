"""What a program reaches beyond the model: made by whoever starts the run, for the one who pays for it.

The sandbox sees none of it directly: `lm` and its handles do, and say `capability_missing` for what is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

from extensions.tools.catalog import ToolCatalog


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Doors out of a run; what is None is not there.

    Attributes:
        tools: Tools of the server, and what may be fetched.
    """

    tools: ToolCatalog | None = None
