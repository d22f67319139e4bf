"""Exports: forks of held contexts that belong to no gateway, so that they outlive whoever made them.

Nothing ever computes on an export and it never changes: it is there to be forked from. It is charged before everybody
else who holds the same pages, until it is released or its time is over. When its pages are needed by others it gives
way like any idle context; what is forked from it then has tokens alone.

Whoever imports with another salt than the exporter's shares the pages that are there and nothing else: what it computes
behind them is put into no cache and looked for in none, so neither side can tell by speed what the other one does.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.contexts.commands import ExportCommand, ExportContext, ImportContext, KeepExport, ReleaseExport
from engine.contexts.held import HeldContext
from engine.contexts.pages import ContextPages
from engine.kv.meter import KVMeter, Rank


class ContextExports:
    """Exports by id, among the contexts of a registry.

    Args:
        contexts: All contexts by id, exports included.
        pages: What shares pages.
        meter: Its clock is that of exports.
        add: Takes a new context into the registry.
        forget: Ends one.
    """

    def __init__(
        self,
        contexts: dict[str, HeldContext],
        pages: ContextPages,
        meter: KVMeter,
        *,
        add: Callable[[HeldContext], None],
        forget: Callable[[HeldContext], None],
    ) -> None:
        self._contexts = contexts
        self._pages = pages
        self._meter = meter
        self._add = add
        self._forget = forget
        self._ends: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, export_id: str) -> bool:
        return export_id in self._ends

    def ends_at(self, export_id: str) -> int | None:
        """Meter's time at which an export is over; None if there is none of that name."""
        return self._ends.get(export_id)

    def obey(self, command: ExportCommand) -> None:
        """Does as told; what names nothing that is there, or makes what is there already, is ignored."""
        self._meter.tick()
        match command:
            case ExportContext(context_id, export_id, ttl_ms):
                context = self._contexts.get(context_id)
                if context is not None and context_id not in self._ends and export_id not in self._contexts:
                    self._fork(context, export_id, context.payer.account, context.salt, Rank.EXPORTED)
                    self._ends[export_id] = self._meter.now + ttl_ms
            case ImportContext(export_id, context_id, account, salt):
                if export_id in self._ends and context_id not in self._contexts:
                    self._fork(self._contexts[export_id], context_id, account, salt, Rank.LIVE)
            case KeepExport(export_id, ttl_ms):
                if export_id in self._ends:
                    self._ends[export_id] = self._meter.now + ttl_ms
            case ReleaseExport(export_id):
                self._release(export_id)

    def tend(self) -> None:
        """Releases those whose time is over."""
        for export_id in [export_id for export_id, ends_at in self._ends.items() if self._meter.now >= ends_at]:
            self._release(export_id)

    def _release(self, export_id: str) -> None:
        if self._ends.pop(export_id, None) is not None:
            self._forget(self._contexts[export_id])

    def _fork(self, context: HeldContext, new_id: str, account: str, salt: str, rank: Rank) -> None:
        payer = self._meter.payer(account, rank)
        new = HeldContext(new_id, payer, salt, token_ids=list(context.token_ids), adapter=context.adapter)
        new.shape = context.shape
        new.is_foreign = context.is_foreign or salt != context.salt
        if not new.is_foreign:
            new.family = context.family
        self._pages.share(context, new)
        self._add(new)
