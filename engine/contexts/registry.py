"""Every held context: who has which pages while nobody computes, and who must give them up when they are needed.

    open, append, fork, truncate        tokens; pages only ever shared or freed
    claim ─▶ prepare ─▶ enter           a sequence computes on one, and has its pages while it runs
    give_back                           the context has them again, and every token that was given out
    demote                              pages go to the prefix cache; tokens stay, and are computed again when needed

When to do what is the scheduler's business (`engine.scheduling`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from engine.contexts.commands import (
    AppendTokens,
    ContextInfo,
    EndLease,
    ExportCommand,
    ExportContext,
    ForkContext,
    ImportContext,
    KeepContext,
    KeepExport,
    OpenContext,
    ReleaseExport,
    Residency,
    RetainContext,
    TruncateContext,
)
from engine.contexts.exports import ContextExports
from engine.contexts.held import HeldContext
from engine.contexts.hosting import ContextHosting, Plan
from engine.contexts.kinship import FEW_TOKENS, find_leader, find_source
from engine.contexts.masks import Mask, lane_mask
from engine.contexts.pages import ContextPages
from engine.errors import InvalidRequest, LeaseLost, SequenceNotFound
from engine.forward.shapes import Shape
from engine.forward.sights import shaped_mask
from engine.kv.block_table import BlockTable
from engine.kv.manager import KVManager, PrefixName
from engine.kv.tiers import HostCopy, HostTier
from engine.leases.book import LeaseBook
from engine.leases.costs import RestoreCosts
from engine.leases.kept import KeptHistories
from engine.sequence import Sequence


class ContextRegistry:
    """Contexts by id.

    Args:
        kv: The pool their pages are from.
        tier: Host memory for those whose pages others need.
        window: Positions that a token of the model sees back, itself included; None for all.

    Attributes:
        num_demoted: Contexts whose pages were needed by others, so far.
        costs: What it takes to have KV back.
        leases: Who wishes to keep what.
        exports: What belongs to no gateway, and is there to be forked from.
        kept: What belongs to no gateway, and is there so that requests that begin the same find its pages.
    """

    def __init__(self, kv: KVManager, tier: HostTier, window: int | None = None) -> None:
        self._kv = kv
        self.costs = RestoreCosts()
        self.leases = LeaseBook(kv.meter, self.costs)
        self._hosting = ContextHosting(kv, tier, self.costs)
        self._pages = ContextPages(kv, self._hosting)
        self._window = window
        self._contexts: dict[str, HeldContext] = {}
        self._uses = itertools.count(1)
        self.num_demoted = 0
        self.kept = KeptHistories(self.leases, self.forget)
        self.exports = ContextExports(self._contexts, self._pages, kv.meter, add=self._add, forget=self.forget)

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[HeldContext]:
        return iter(self._contexts.values())

    def __getitem__(self, context_id: str) -> HeldContext:
        """Finds one.

        Raises:
            SequenceNotFound: There is none of that id.
        """
        context = self._contexts.get(context_id)
        if context is None:
            raise SequenceNotFound("the context is not there (any more)")
        return context

    def tables(self) -> Iterator[BlockTable]:
        """Pages that contexts hold while nobody runs on them, for integrity checks."""
        for context in self._contexts.values():
            if context.table is not None:
                yield context.table

    def hosted(self) -> Iterator[HostCopy]:
        """Copies in host memory, for integrity checks."""
        for context in self._contexts.values():
            if context.host is not None:
                yield context.host

    def describe(self, context_id: str) -> ContextInfo:
        """What a context holds now; nothing if it is not there."""
        context = self._contexts.get(context_id)
        if context is None:
            return ContextInfo(length=0)
        self._kv.meter.tick()
        sequence = context.sequence
        is_running = sequence is not None and sequence.is_running
        table, num_computed = context.table, context.num_computed
        if sequence is not None and is_running:
            table, num_computed = sequence.table, sequence.num_computed
        residency: Residency = "device" if table is not None else "tokens"
        num_pages = 0 if table is None else len(table.pages)
        if table is None and context.host is not None:
            residency, num_pages, num_computed = "host", len(context.host.pages), context.num_hosted
        return ContextInfo(
            length=len(context.token_ids),
            num_computed=num_computed,
            num_pages=num_pages,
            num_shared_pages=0 if table is None else self._kv.num_shared(table),
            residency=residency,
            lease_id="" if context.lease is None else context.lease.lease_id,
            kv_kib_ms=context.payer.kib_ms,
            charged_bytes=context.payer.num_bytes,
        )

    # -- what owners ask for --------------------------------------------------------------------------------------

    def obey(
        self,
        command: OpenContext
        | AppendTokens
        | ForkContext
        | TruncateContext
        | RetainContext
        | EndLease
        | KeepContext
        | ExportCommand,
    ) -> None:
        """Does as told; what names no context, or one that exists already, is ignored."""
        if isinstance(command, ImportContext | KeepExport | ReleaseExport):
            self.exports.obey(command)
            return
        if isinstance(command, OpenContext):
            if command.context_id not in self._contexts:
                payer = self._kv.meter.payer(command.account)
                self._add(HeldContext(command.context_id, payer, command.salt, adapter=command.adapter))
            return
        context = self._contexts.get(command.context_id)
        if context is None:
            return
        match command:
            case AppendTokens(token_ids=token_ids, start=start):
                self._when_idle(context, lambda: self._append(context, token_ids, start))
            case ForkContext(new_ids=new_ids):
                self._when_idle(context, lambda: self._fork(context, new_ids))
            case TruncateContext(length=length, edits=edits):
                self._when_idle(context, lambda: self._pages.truncate(context, length, edits))
            case KeepContext():
                self._when_idle(context, lambda: self.kept.keep(context, command))
            case ExportContext():
                self._when_idle(context, lambda: self.exports.obey(command))
            case RetainContext():
                self.leases.retain(context, command)
            case EndLease(lease_id=lease_id):
                self.leases.end(context, lease_id)
                self._unhost(context)

    def forget(self, context: HeldContext) -> None:
        """Ends a context that nobody computes on; its full pages stay in the prefix cache."""
        assert context.sequence is None
        self.leases.forgotten(context)
        self._hosting.drop(context)
        self.demote(context)
        context.family.discard(context)
        del self._contexts[context.context_id]

    # -- computing on one -----------------------------------------------------------------------------------------

    def claim(self, context_id: str) -> HeldContext:
        """The context that a new sequence is to compute on.

        Raises:
            SequenceNotFound: There is none of that id.
            InvalidRequest: Something computes on it already.
            LeaseLost: What was kept for it is gone, and its holder wanted to be told so.
        """
        context = self[context_id]
        if context.sequence is not None:
            raise InvalidRequest("something computes on the context already", "context_id")
        if context.refusal is not None:
            reason = context.refusal.reason
            context.refusal = context.refusal if context.refuses_always else None
            raise LeaseLost(reason)
        return context

    def begin(self, context: HeldContext, sequence: Sequence, shape: Shape | None = None) -> None:
        """A sequence is to compute on a context that it has claimed, whose last rows have a shape from now on."""
        self._pages.reshape(context, shape)
        context.sequence = sequence
        self.leases.used(context)

    def is_ready(self, sequence: Sequence) -> bool:
        """False while the sequence should wait for a relative to compute what they have in common."""
        context = sequence.context
        assert context is not None
        if len(context.family) == 1:
            return True
        leader = sequence.leader
        if leader is not None and leader.is_running and leader.num_computed < sequence.num_shared:
            return False
        least = FEW_TOKENS if sequence.request.passes else 1
        found = find_leader(context, sequence.num_reusable, least)
        sequence.leader, sequence.num_shared = found or (None, 0)
        return found is None

    def prepare(self, sequence: Sequence) -> int:
        """Finds the pages with the most of a waiting sequence's history and returns how many tokens they hold.

        They are in `context.table` then, without anything that is to be computed again.
        """
        context = sequence.context
        assert context is not None
        source = find_source(context, sequence.num_reusable) if len(context.family) > 1 else None
        if source is not None:
            self._pages.adopt(context, source.table, source.num_tokens)
        if context.num_computed > sequence.num_reusable:
            self._pages.cut(context, sequence.num_reusable)
        return context.num_computed

    def plan_restore(self, sequence: Sequence, name: PrefixName) -> Plan | None:
        """How the context of a waiting sequence would come back from host memory; None if not from there."""
        context = sequence.context
        assert context is not None
        return self._hosting.plan(sequence, name)

    def restore(self, sequence: Sequence, plan: Plan) -> int:
        """Has a context come back from host memory with the next step.

        Returns:
            How many of its tokens are there whatever becomes of that step.
        """
        context = sequence.context
        assert context is not None
        self._pages.give_up(context)
        return self._hosting.restore(sequence, plan)

    def free_unseen(self, sequence: Sequence) -> int:
        """Frees the pages of a running sequence that nothing it will compute from now on sees.

        Returns:
            Tokens that may be computed before this is to be asked again.
        """
        context = sequence.context
        assert context is not None
        assert sequence.table is not None
        position = sequence.num_scheduled
        self._pages.free_gaps(context, sequence.table, position)
        sequence.num_dropped = context.num_dropped
        return context.next_border(position) - position

    def mask(self, sequence: Sequence, start: int, stop: int) -> Mask | None:
        """What a lane of a sequence on an edited context sees; see `engine.contexts.masks`."""
        context = sequence.context
        assert context is not None
        if context.shape is not None and context.shape.sights:
            return shaped_mask(context.shape, start, stop)
        return lane_mask(context.edits, context.gaps, start, stop, self._window)

    def enter(self, sequence: Sequence) -> None:
        """A sequence whose context has pages begins to run: they are its own now."""
        context = sequence.context
        assert context is not None
        sequence.table, context.table, context.num_computed = context.table, None, 0
        sequence.num_dropped = context.num_dropped

    def give_back(self, sequence: Sequence, *, intact: bool) -> None:
        """A sequence stops running: its context has the pages again.

        Args:
            sequence: The sequence; it has no pages afterwards.
            intact: False if a step failed that may have written to the last page of what is computed.
        """
        context = sequence.context
        assert context is not None
        assert context.table is None
        context.table, sequence.table = sequence.table, None
        context.num_computed = sequence.num_computed
        size = self._kv.page_size
        num_whole = context.num_computed // size * size
        self._pages.cut(context, sequence.num_certain if intact else min(sequence.num_certain, num_whole))
        context.used_at = next(self._uses)
        sequence.num_dropped = 0

    def leave(self, context: HeldContext) -> None:
        """The sequence of a context has ended; what was asked for meanwhile is done."""
        context.sequence = None
        self.leases.idle(context)
        context.used_at = next(self._uses)
        deferred, context.deferred = context.deferred, []
        for act in deferred:
            act()

    # -- giving way -----------------------------------------------------------------------------------------------

    def demote(self, context: HeldContext) -> None:
        """Lets go of a context's pages; full ones stay in the prefix cache until somebody needs them."""
        self._pages.give_up(context)

    def demote_account(self, account: str, keep: HeldContext | None = None) -> None:
        """Demotes all contexts of an account on which nobody computes, but for one."""
        for context in self._contexts.values():
            holds = context is not keep and (context.table is not None or context.host is not None)
            if holds and context.payer.account == account and context.sequence is None:
                self._hosting.drop(context)
                self.demote(context)
                self.leases.revoke(context, "quota")
                self.num_demoted += 1

    def tend(self) -> None:
        """Ends leases, and what is kept by them, and exports that are over by now."""
        for context, reason in self.leases.due():
            self.leases.revoke(context, reason)
            self._unhost(context)
        self.kept.tend()
        self.exports.tend()

    def demote_one(self, keep: HeldContext | None = None) -> bool:
        """Demotes the context that is worth least, idle ones first, but not `keep`; False if none has pages."""
        held = [context for context in self._contexts.values() if context.table is not None and context is not keep]
        if not held:
            return False
        self._relieve(min(held, key=self._rank))
        self.num_demoted += 1
        return True

    def _relieve(self, context: HeldContext) -> None:
        """Takes a context's pages for others, as its lease says."""
        lease = context.lease
        if lease is not None and context.sequence is None:
            if lease.on_pressure == "host" and self._find_room(context):
                self._hosting.save(context)
            else:
                self.leases.revoke(context, "pressure")
        self.demote(context)

    def _find_room(self, context: HeldContext) -> bool:
        """Makes room in host memory, by giving up copies that are worth less; False if there is not enough of those."""
        while not self._hosting.can_save(context):
            hosted = [other for other in self._contexts.values() if other.host is not None and other.sequence is None]
            least = min(hosted, key=self.leases.value, default=None)
            if least is None or self.leases.value(least) >= self.leases.value(context):
                return False
            self._hosting.drop(least)
            self.leases.revoke(least, "pressure")
        return True

    def _unhost(self, context: HeldContext) -> None:
        """Host memory is for those with a lease."""
        if context.lease is None and context.sequence is None:
            self._hosting.drop(context)

    def _rank(self, context: HeldContext) -> tuple[bool, float, int]:
        """Rises with what is lost by demoting."""
        return context.sequence is not None, self.leases.value(context), context.used_at

    # -------------------------------------------------------------------------------------------------------------

    def _add(self, context: HeldContext) -> None:
        self._contexts[context.context_id] = context
        context.family.add(context)
        context.used_at = next(self._uses)

    def _append(self, context: HeldContext, token_ids: list[int], start: int | None) -> None:
        there = [] if start is None else context.token_ids[start:]
        pairs = zip(there, token_ids, strict=False)
        num_same = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(there), len(token_ids)))
        if num_same < len(there):
            self._pages.truncate(context, len(context.token_ids) - len(there) + num_same, context.edits)
        context.token_ids.extend(token_ids[num_same:])

    def _fork(self, context: HeldContext, new_ids: list[str]) -> None:
        for context_id in new_ids:
            if context_id in self._contexts:
                continue
            payer = self._kv.meter.payer(context.payer.account)
            new = HeldContext(context_id, payer, context.salt, context.family, list(context.token_ids))
            new.adapter, new.shape, new.is_foreign = context.adapter, context.shape, context.is_foreign
            self._pages.share(context, new)
            self._add(new)

    def _when_idle(self, context: HeldContext, act: Callable[[], None]) -> None:
        if context.sequence is None:
            act()
        else:
            context.deferred.append(act)
