"""A token history whose KV stays in the engine between the requests that compute on it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.contexts.edits import NEVER, Edit, Gap, gaps_of, num_dropped, num_plain
from engine.forward.shapes import Shape
from engine.kv.block_table import BlockTable
from engine.kv.meter import Payer

if TYPE_CHECKING:
    from engine.kv.tiers import HostCopy
    from engine.leases.lease import Lease, LeaseRevoked
    from engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class HeldContext:
    """One context. Its pages are its own while nobody computes on it, and the computing sequence's meanwhile.

    Attributes:
        context_id: Its name.
        payer: Whom the KV meter charges; through all its pages' comings and goings.
        salt: Prefix pages are shared only with those of the same salt.
        adapter: Name of the adapter that computes its KV; empty for none.
        family: Those that came of one beginning by forks, this one included; they look at each other for pages.
        token_ids: The history; the sequence that computes on it appends to this very list.
        num_computed: Tokens whose K and V lie in `table`.
        table: Its pages, while no running sequence has them; None if it has none.
        sequence: What computes on it, running or waiting.
        edits: What later tokens do not see.
        planned: What the edits free, by and by; in the order of time.
        borders: Where the edits begin to hold, rising.
        gaps: Of what is planned, what is gone from the table by now.
        num_dropped: Tokens in those gaps: slots lie that much before positions.
        num_plain: Leading tokens whose KV may be shared with histories without edits.
        used_at: When it was last used; counts uses of all contexts.
        lease: The wish to keep its KV while nobody computes on it.
        refusal: Why the next computation on it fails.
        refuses_always: And not only the next.
        idle_since: Meter's time since when nobody computes on it; None while somebody does, or did never.
        host: Its KV in host memory, while it has no pages.
        num_hosted: Tokens in that.
        hosted_gaps: What was gone from the table when it was saved.
        shape: Positions and sights of its last rows, if they are not those of any history.
        is_foreign: Its first pages came from somebody of another salt: none of its pages are put into a cache.
        deferred: What was asked for while a sequence computed on it.
    """

    context_id: str
    payer: Payer
    salt: str
    family: set[HeldContext] = field(default_factory=set)
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    table: BlockTable | None = None
    sequence: Sequence | None = None
    edits: tuple[Edit, ...] = ()
    planned: list[Gap] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    num_dropped: int = 0
    num_plain: int = NEVER
    used_at: int = 0
    deferred: list[Callable[[], None]] = field(default_factory=list)
    lease: Lease | None = None
    refusal: LeaseRevoked | None = None
    refuses_always: bool = False
    idle_since: int | None = None
    host: HostCopy | None = None
    num_hosted: int = 0
    hosted_gaps: list[Gap] = field(default_factory=list)
    adapter: str = ""
    shape: Shape | None = None
    is_foreign: bool = False

    def set_edits(self, edits: tuple[Edit, ...], page_size: int) -> None:
        """Takes over what the owner says; what is gone from the table is for others to look after."""
        self.edits = edits
        self.planned = gaps_of(edits, page_size)
        self.borders = sorted(edit.since for edit in edits)
        self.set_gaps(self.gaps)

    def set_gaps(self, gaps: list[Gap]) -> None:
        """These are gone from the table now."""
        self.gaps = gaps
        self.num_dropped = num_dropped(gaps)
        plain = 0 if self.is_foreign else num_plain(self.edits, gaps)
        self.num_plain = plain if self.shape is None else min(plain, self.shape.start)

    def freeable(self, position: int) -> list[Gap]:
        """What no row from a position on sees, and is still there."""
        count = bisect_right(self.planned, position, key=lambda gap: gap.since)
        if count == len(self.gaps):
            return []
        return [gap for gap in self.planned[:count] if gap not in self.gaps]

    def next_border(self, position: int) -> int:
        """The first position after this one from which on something else is seen."""
        at = bisect_right(self.borders, position)
        return self.borders[at] if at < len(self.borders) else NEVER
