"""What programs reach beyond the model, made for each run and for whoever pays for it."""

from __future__ import annotations

from dataclasses import dataclass

from extensions.programs.world import World
from extensions.tools.catalog import ToolCaller
from gateway.prefixes.asking import Asker
from gateway.prefixes.door import ProgramPrefixes
from gateway.prefixes.requested import RequestedPrefix
from gateway.prefixes.service import PrefixService
from gateway.tenancy.payer import Payer
from gateway.tools.service import ToolService


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldMaker:
    """What one gateway process has for programs.

    Attributes:
        tools: What calls tools.
        prefixes: What keeps histories.
    """

    tools: ToolService
    prefixes: PrefixService

    def world(
        self,
        *,
        asker: Asker,
        run_id: str,
        model: str,
        payer: Payer | None = None,
        requested: RequestedPrefix | None = None,
    ) -> World:
        """The doors out of one run.

        Args:
            asker: Who pays, and whose things they lead to.
            run_id: Of the run.
            model: Name of the model that the request used.
            payer: Told what tools use that are programs.
            requested: The prefix that the run is there to make.
        """
        note = None if payer is None else payer.note
        may_call = payer is None or payer.may("tools")
        caller = ToolCaller(account=asker.owner, salt=asker.salt, run_id=run_id, note=note, may_call=may_call)
        if not self.prefixes.is_there:
            return World(tools=self.tools.catalog(caller))
        may_export = payer is None or payer.may("prefixes")
        prefixes = ProgramPrefixes(self.prefixes, asker, model, requested, may_export=may_export)
        return World(tools=self.tools.catalog(caller), prefixes=prefixes)
