"""Names that clients give their requests for prefixes, so that one that is sent again makes nothing twice.

Keys, all with the prefix of the store, which is one hash tag so that a cluster keeps them together:

    pxi:OWNER:KEY   string  "state digest id"; state is `making` or `made`; goes after a day
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from gateway.state.link import unavailable
from gateway.state.owned import owned_key

KEEP_MS = 24 * 3_600_000
"""How long a name is remembered."""

WHAT = "prefixes"

_CLAIM = """
-- wye prefix claims 1
-- KEYS  pxi:OWNER:KEY
-- ARGV  what it is to be, ms that it is remembered
-- Returns what it is.
local found = redis.call('GET', KEYS[1])
if found then
    return found
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a name stands for.

    Attributes:
        name: Key of the record.
        digest: Of the request that it was given to first.
        prefix_id: What that makes, or has made.
        is_made: It has been made.
    """

    name: str
    digest: str
    prefix_id: str
    is_made: bool


class PrefixClaims:
    """All names.

    Args:
        redis: Where they are.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._claim = redis.register_script(_CLAIM)

    async def take(self, owner: str, key: str, digest: str, prefix_id: str) -> Claim:
        """What a name stands for: what is asked for now, unless it has been given to something before.

        Args:
            owner: Who gives it.
            key: The name.
            digest: Of the request.
            prefix_id: What it is to make, if it is the first.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        name = owned_key("pxi", owner, hashlib.sha256(key.encode()).hexdigest())
        with unavailable(WHAT):
            found = await self._claim(keys=[name], args=[f"making {digest} {prefix_id}", KEEP_MS])
        state, digest, prefix_id = (found if isinstance(found, str) else found.decode()).split(" ")
        return Claim(name, digest, prefix_id, state == "made")

    async def settle(self, claim: Claim) -> None:
        """What a name stands for has been made.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            await self._redis.set(claim.name, f"made {claim.digest} {claim.prefix_id}", px=KEEP_MS)

    async def give_up(self, claim: Claim) -> None:
        """What a name stands for could not be made; it is free.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            await self._redis.delete(claim.name)
