"""What whoever looks after tenants tells the engine about accounts. Never answered."""

from __future__ import annotations

import msgspec


class SetCeilings(msgspec.Struct, frozen=True, tag="ceilings"):
    """How much accounts may be charged in all, and hold at once; others keep what they have, and none is no limit.

    At its ceiling an account begins nothing new and keeps no idle context; what it runs ends with `QuotaExceeded` a
    heartbeat later, unless its ceiling has been raised by then, or it holds no more than it may.

    Attributes:
        ceilings: KiB·ms by account, counted since the engine's `incarnation` began; negative for no limit.
        levels: KiB at once by account; negative for no limit.
    """

    ceilings: dict[str, int]
    levels: dict[str, int] = {}


class SetShares(msgspec.Struct, frozen=True, tag="shares"):
    """How accounts share the device while several want it; one that is not named weighs 1.

    Attributes:
        weights: Positive numbers by account, instead of all that were told before.
    """

    weights: dict[str, float]


AccountCommand = SetCeilings | SetShares
