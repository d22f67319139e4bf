"""The pages of held contexts: cut, shared, freed in the middle, given up.

A table holds the positions before `num_computed`, but for the gaps; what lies after a gap moves up by as much.
"""

from __future__ import annotations

from engine.contexts.edits import Edit, num_dropped
from engine.contexts.held import HeldContext
from engine.contexts.hosting import ContextHosting
from engine.forward.shapes import Shape
from engine.kv.block_table import BlockTable
from engine.kv.manager import KVManager


class ContextPages:
    """What becomes of pages when a history changes; contexts that nobody computes on, but for `free_gaps`.

    Args:
        kv: The pool.
        hosting: Copies in host memory, which change with them.
    """

    def __init__(self, kv: KVManager, hosting: ContextHosting) -> None:
        self._kv = kv
        self._hosting = hosting

    def share(self, context: HeldContext, new: HeldContext) -> None:
        """A context with the same history gets the same pages."""
        new.set_edits(context.edits, self._kv.page_size)
        if context.table is not None:
            new.table = self._kv.fork(context.table, context.num_computed - context.num_dropped, new.payer)
            new.num_computed = context.num_computed
            new.set_gaps(list(context.gaps))

    def adopt(self, context: HeldContext, table: BlockTable, num_tokens: int) -> None:
        """A context gets the first pages of a relative instead of its own; no edit reaches into them."""
        shared = self._kv.fork(table, num_tokens, context.payer)
        self.give_up(context)
        context.table, context.num_computed = shared, num_tokens

    def give_up(self, context: HeldContext) -> None:
        """Lets go of all pages; full ones stay in the prefix cache until somebody needs them."""
        if context.table is not None:
            self._kv.close(context.table, context.token_ids[: min(context.num_computed, context.num_plain)])
            context.table = None
        context.num_computed = 0
        context.set_gaps([])

    def truncate(self, context: HeldContext, length: int, edits: tuple[Edit, ...]) -> None:
        """Cuts a history and gives it its edits; what others see by those than by the ones before is computed again."""
        del context.token_ids[length:]
        keep = min(length, context.num_computed)
        self._hosting.cut(context, length, is_edited=edits != context.edits)
        if edits != context.edits:
            keep = min([keep, *(edit.since for edit in {*edits} ^ {*context.edits})])
            context.set_edits(edits, self._kv.page_size)
        if context.table is not None:
            self.cut(context, keep)
        if context.table is not None:
            self.free_gaps(context, context.table, context.num_computed)

    def reshape(self, context: HeldContext, shape: Shape | None) -> None:
        """Gives the last rows of an idle context a shape, or none; what was computed by another is computed again."""
        if shape == context.shape:
            return
        start = min(one.start for one in (shape, context.shape) if one is not None)
        context.shape = shape
        context.set_gaps(context.gaps)
        self._hosting.cut(context, start, is_edited=False)
        if context.table is not None and context.num_computed > start:
            self.cut(context, start)

    def cut(self, context: HeldContext, num_tokens: int) -> None:
        """Lets go of the pages after the first tokens, and of the room to grow.

        What is gone but would be needed to go on from there is computed again too.
        """
        assert context.table is not None
        gaps, valid = context.gaps, set(context.planned)
        while broken := [gap for gap in gaps if gap.since > num_tokens or gap not in valid]:
            num_tokens = min(num_tokens, *(gap.start for gap in broken))
            gaps = [gap for gap in gaps if gap not in broken]
        context.set_gaps(gaps)
        self._kv.truncate(context.table, num_tokens - context.num_dropped)
        context.num_computed = num_tokens
        if not context.table.pages:
            context.table = None
            context.set_gaps([])

    def free_gaps(self, context: HeldContext, table: BlockTable, position: int) -> None:
        """Frees what no row from a position on sees."""
        for gap in context.freeable(position):
            start = gap.start - num_dropped(other for other in context.gaps if other.stop <= gap.start)
            self._kv.drop_pages(table, start, start + gap.stop - gap.start)
            context.set_gaps([*context.gaps, gap])
