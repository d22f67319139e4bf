"""What the engine holds at a moment, as numbers."""

from __future__ import annotations

from engine.contexts.registry import ContextRegistry
from engine.kv.manager import KVManager
from engine.kv.tiers import HostTier
from engine.scheduling.roster import Roster
from engine.stats import EngineStats


def describe_holding(
    stats: EngineStats, *, kv: KVManager, roster: Roster, contexts: ContextRegistry, tier: HostTier
) -> None:
    """Writes what lives and what it holds over what was there before; running totals stay as they are."""
    usage, leases = kv.usage, contexts.leases
    stats.num_running, stats.num_waiting = len(roster.running), len(roster.waiting)
    stats.num_pages, stats.num_used_pages, stats.num_cached_pages = kv.num_pages, usage.num_used, usage.num_cached
    stats.num_contexts, stats.num_leases = len(contexts), len(leases)
    stats.num_revoked, stats.num_demoted = leases.num_revoked, contexts.num_demoted
    stats.num_host_pages = tier.num_pages - tier.num_free
    stats.num_saved_pages, stats.num_restored_pages = tier.num_saved, tier.num_restored
    kv.meter.tick()
    stats.overhead_kib_ms = kv.meter.overhead_kib_ms
