"""Small values that outlive a run; see `Store` in the stubs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from extensions.programs.doors import ValueStore
from extensions.programs.faults import fault, invalid
from extensions.programs.jsons import checked_name, encoded, seconds

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

MAX_VALUE_BYTES = 256 * 2**10
"""Largest value, as JSON."""

MAX_COUNT = 2**53
"""No whole number beyond this is exact where sums are made."""


class ScriptStore:
    """Values that a script keeps for later runs."""

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope

    async def get(self, key: str, default: Any = None) -> Any:
        """The value under a key."""
        found = await self._values.get(checked_name(key, "key"))
        return default if found is None else json.loads(found)

    async def put(self, key: str, value: Any, *, ttl_s: float | None = None, only_new: bool = False) -> bool:
        """Keeps a value."""
        ttl = seconds(ttl_s, "ttl_s")
        if ttl is not None and ttl < 0.001:
            raise invalid("ttl_s must be at least 0.001")
        if not isinstance(only_new, bool):
            raise invalid("only_new must be True or False")
        data = encoded(value, "value", MAX_VALUE_BYTES)
        return await self._values.put(checked_name(key, "key"), data, ttl_s=ttl, only_new=only_new)

    async def add(self, key: str, amount: float = 1) -> float:
        """Counts."""
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount):
            raise invalid("amount must be a number")
        if isinstance(amount, int) and abs(amount) > MAX_COUNT:
            raise invalid(f"amount must be between {-MAX_COUNT} and {MAX_COUNT}")
        return await self._values.add(checked_name(key, "key"), amount)

    async def delete(self, key: str) -> bool:
        """Forgets a value."""
        return await self._values.delete(checked_name(key, "key"))

    @property
    def _values(self) -> ValueStore:
        values = self._scope.world.values
        if values is None:
            raise fault("capability_missing", "this server keeps no values of programs: it has no Redis")
        return values
