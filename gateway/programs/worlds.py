"""What programs reach beyond the model, made for each run and for whoever pays for it."""

from __future__ import annotations

from dataclasses import dataclass

from extensions.programs.world import World
from extensions.tools.catalog import ToolCaller
from gateway.tools.service import ToolService


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldMaker:
    """What one gateway process has for programs.

    Attributes:
        tools: What calls tools.
    """

    tools: ToolService

    def world(self, *, owner: str, salt: str, run_id: str) -> World:
        """The doors out of one run.

        Args:
            owner: Who pays, and whose things they lead to.
            salt: Prefix pages are shared only among contexts of the same salt.
            run_id: Of the run.
        """
        caller = ToolCaller(account=owner, salt=salt, run_id=run_id)
        return World(tools=self.tools.catalog(caller))
