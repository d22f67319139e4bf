"""What the admission script answers, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit per minute, and what is left of it.

    Attributes:
        limit: -1 for none.
        left: That may come at once.
        reset_ms: Until all of it is there again.
    """

    limit: int
    left: int
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request goes on; see `gateway.state.admit_scripts`.

    Attributes:
        kind: `ok`, or why not.
        tenant: Whose the key is.
        scopes: What the key may do.
        source: Whose limit was reached; of an admitted request what a tenant in shadow would have been told.
        limit: That was reached.
        used: Of it.
        held: Of it, by running work.
        retry_ms: Until trying again can help.
        resets_ms: When the limit begins anew.
        requests: The tightest limit on requests.
        tokens: The tightest limit on tokens.
        kv: Limit, used, held and end of the window of the KV quota, in KiB·s; -1 for none.
    """

    kind: str
    tenant: str = ""
    scopes: str = ""
    source: str = ""
    limit: int = -1
    used: int = 0
    held: int = 0
    retry_ms: int = 0
    resets_ms: int = 0
    requests: Rate = Rate(-1, -1, -1)
    tokens: Rate = Rate(-1, -1, -1)
    kv: tuple[int, int, int, int] = (-1, -1, -1, -1)

    @classmethod
    def read(cls, answer: Sequence[Any]) -> Self:
        """Reads what the script returned; what it left out is not limited."""
        texts = [one.decode() if isinstance(one, bytes) else str(one) for one in answer]
        kind, tenant, scopes, source = [*texts, "", "", ""][:4]
        numbers = [int(one) for one in texts[4:]]
        if not numbers:
            return cls(kind, tenant, scopes, source)
        limit, used, held, retry_ms, resets_ms = numbers[:5]
        return cls(
            *(kind, tenant, scopes, source),
            *(limit, used, held, retry_ms, resets_ms),
            requests=Rate(*numbers[5:8]),
            tokens=Rate(*numbers[8:11]),
            kv=(numbers[11], numbers[12], numbers[13], numbers[14]),
        )

    def headers(self) -> dict[str, str]:
        """Response headers that tell limits and what is left: OpenAI's six, and our own of the KV quota."""
        found: dict[str, str] = {}
        for name, rate in (("requests", self.requests), ("tokens", self.tokens)):
            if rate.limit >= 0:
                found[f"x-ratelimit-limit-{name}"] = str(rate.limit)
                found[f"x-ratelimit-remaining-{name}"] = str(rate.left)
                found[f"x-ratelimit-reset-{name}"] = duration(rate.reset_ms)
        limit, used, _, resets_ms = self.kv
        if limit >= 0:
            found["x-kv-quota-limit"] = str(limit)
            found["x-kv-quota-used"] = str(used)
            found["x-kv-quota-remaining"] = str(max(0, limit - used))
            if resets_ms > 0:
                found["x-kv-quota-reset"] = str(resets_ms // 1000)
        if self.kind == "ok" and self.source:
            found["x-quota-shadow"] = self.source
        return found


def duration(ms: int) -> str:
    """A time as OpenAI writes it: `12ms`, `1.5s`, `6m0s`, `1h2m3s`."""
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + f"{seconds}s"
