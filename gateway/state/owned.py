"""Names of keys that belong to owners, and errors of Redis as programs meet them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from extensions.programs.faults import fault
from gateway.errors import StoreUnavailable
from gateway.state.link import unavailable
from gateway.state.store import PREFIX

OP_MS = 30_000
"""How long a change is known as done: whoever lost its answer asks again, and is told what it did the first time."""


def owned_key(kind: str, owner: str, *names: str) -> str:
    """The key of something of an owner's. Lengths stand before all parts but the last: no two lists make one key."""
    parts = [owner, *names]
    return f"{PREFIX}{kind}:" + ":".join([*(f"{len(part)}:{part}" for part in parts[:-1]), parts[-1]])


@contextlib.contextmanager
def told_to_programs(what: str) -> Iterator[None]:
    """Has a script see that Redis does not answer.

    Args:
        what: That is kept there.

    Raises:
        RuntimeError: Redis did not answer (`store_unavailable`).
    """
    try:
        with unavailable(what):
            yield
    except StoreUnavailable as error:
        raise fault("store_unavailable", error.message) from None
