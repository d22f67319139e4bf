"""One sequence's pages in order: position p lies in slot `pages[p // page_size] * page_size + p % page_size`."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from engine.kv.meter import Payer
from engine.kv.pages import Claim


@dataclass(slots=True, eq=False)
class BlockTable:
    """Pages that one sequence holds a reference to. `KVManager` alone changes it.

    Attributes:
        pages: Page numbers, by position; C ints, which a step takes over as they lie in memory.
        payer: Who pays for those pages that nobody pays for before it.
        root: Key that the sequence's first page is chained to (see `engine.kv.identity`).
        keys: Keys of the leading full pages, as far as they were computed; grows with the sequence.
        claim: Run of free pages it hopes to grow into.
    """

    payer: Payer
    root: bytes
    pages: array[int] = field(default_factory=lambda: array("i"))
    keys: list[bytes] = field(default_factory=list)
    claim: Claim | None = None
