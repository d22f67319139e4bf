"""What a tenant or a key may use: checked once, as wire, file and store have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gateway.tenancy.windows import check_window

MAX_RATE = 100_000_000
"""Largest limit per minute: arrival times are kept in whole microseconds."""

MAX_KV_KIB_S = 2**52
"""Largest KV quota in KiB·s; scripts count with doubles."""

State = Literal["active", "suspended", "shadow", "archived"]
Rate = Annotated[int, Field(ge=1, le=MAX_RATE)]


class KeyLimits(BaseModel):
    """Limits of one key; those of its tenant count as well, and the tightest wins. None is no limit.

    Attributes:
        requests_per_minute: Requests that begin.
        tokens_per_minute: Of prompts and answers.
        concurrency: Requests at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    def fields(self) -> dict[str, str]:
        """As the store has them; an empty text is no limit."""
        return {short: _text(getattr(self, name)) for name, short in self.names().items()}

    @classmethod
    def names(cls) -> Mapping[str, str]:
        """The store's names of all limits."""
        return {"requests_per_minute": "rpm", "tokens_per_minute": "tpm", "concurrency": "conc"}

    @classmethod
    def of(cls, record: Mapping[str, str]) -> Self:
        """Reads what the store has."""
        found: dict[str, Any] = {}
        for name, short in cls.names().items():
            if (text := record.get(short, "")) != "":
                found[name] = text if name == "kv_window" else int(text)
        return cls.model_validate(found)


class TenantLimits(KeyLimits):
    """Limits of a tenant.

    Attributes:
        kv_kib_seconds: Memory of the model times seconds, in a window.
        kv_window: When that begins anew: `hour`, `day`, `week` or `month`, with `@` and a time zone, or
            `rolling:SECONDS`.
        kv_soft_percent: Of the quota, at which the ledger says so.
        resident_kib: Memory of the model at once.
        weight: Share of a busy engine, against other tenants.
    """

    kv_kib_seconds: Annotated[int, Field(ge=1, le=MAX_KV_KIB_S)] | None = None
    kv_window: str = "month@UTC"
    kv_soft_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    resident_kib: Annotated[int, Field(ge=1, le=MAX_KV_KIB_S)] | None = None
    weight: Annotated[int, Field(ge=1, le=1000)] | None = None

    @field_validator("kv_window")
    @classmethod
    def _check_window(cls, window: str) -> str:
        return check_window(window)

    @classmethod
    def names(cls) -> Mapping[str, str]:
        """The store's names of all limits."""
        return {
            **KeyLimits.names(),
            "kv_kib_seconds": "kv",
            "kv_window": "window",
            "kv_soft_percent": "soft",
            "resident_kib": "cap",
            "weight": "weight",
        }


def reason_of(error: ValidationError) -> str:
    """Why limits are none, in one sentence."""
    first = error.errors()[0]
    return str(first.get("ctx", {}).get("error", first["msg"]))


def _text(value: int | str | None) -> str:
    return "" if value is None else str(value)
