"""Who wants something of prefixes, and whether they may."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.state.prefixes import PrefixRecord
from gateway.tenancy.payer import Payer


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """Whoever makes or uses prefixes.

    Attributes:
        owner: Label of the tenant, which pays.
        salt: Of its pages.
        key_id: Of its API key; empty if that has none.
        program: Digest of the program that asks; empty if none does.
    """

    owner: str
    salt: str = ""
    key_id: str = ""
    program: str = ""

    def may_use(self, record: PrefixRecord) -> bool:
        """Whether a prefix is there for this one; its maker's key always may."""
        is_own = record.owner == self.owner
        if is_own and record.key_id == self.key_id:
            return True
        if record.visibility == "private" or (record.visibility == "tenant" and not is_own):
            return False
        labels = {self.owner, self.key_id, self.program} - {""}
        return not record.allow or not labels.isdisjoint(record.allow)


def key_id_of(payer: Payer | None) -> str:
    """Of the API key that somebody pays with; empty if it has none."""
    return "" if payer is None or payer.ticket is None else payer.ticket.key_id
