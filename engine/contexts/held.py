"""A token history whose KV stays in the engine between the requests that compute on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.contexts.edits import Edit, Gap, num_dropped, num_plain
from engine.kv.block_table import BlockTable

if TYPE_CHECKING:
    from engine.sequence import Sequence


@dataclass(slots=True, eq=False)
class HeldContext:
    """One context. Its pages are its own while nobody computes on it, and the computing sequence's meanwhile.

    Attributes:
        context_id: Its name.
        account: Opaque label that the KV meter charges.
        salt: Prefix pages are shared only with those of the same salt.
        family: Those that came of one beginning by forks, this one included; they look at each other for pages.
        token_ids: The history; the sequence that computes on it appends to this very list.
        num_computed: Tokens whose K and V lie in `table`.
        table: Its pages, while no running sequence has them; None if it has none.
        sequence: What computes on it, running or waiting.
        edits: What later tokens do not see.
        gaps: Of the pages that edits free, those that are gone from the table by now.
        used_at: When it was last used; counts uses of all contexts.
        deferred: What was asked for while a sequence computed on it.
    """

    context_id: str
    account: str
    salt: str
    family: set[HeldContext] = field(default_factory=set)
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    table: BlockTable | None = None
    sequence: Sequence | None = None
    edits: tuple[Edit, ...] = ()
    gaps: list[Gap] = field(default_factory=list)
    used_at: int = 0
    deferred: list[Callable[[], None]] = field(default_factory=list)

    @property
    def num_dropped(self) -> int:
        """Tokens whose pages are gone from the table: slots lie that much before positions."""
        return num_dropped(self.gaps)

    @property
    def num_plain(self) -> int:
        """Leading tokens whose KV may be shared with histories without edits."""
        return num_plain(self.edits, self.gaps)
