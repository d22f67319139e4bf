"""Usage of tenants, summed into buckets and grouped, from what was written at the end of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.state.tenancy import Record, TenancyStore

HOUR_S = 3600
DAY_S = 24 * HOUR_S

Group = tuple[str, str, str, str]
"""Tenant, key, model, program; empty where not told apart."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Usage in a span of time.

    Attributes:
        start_s: Its begin.
        end_s: Its end, exclusive.
        groups: Counts by group: `requests`, `input`, `cached`, `output`, and `kv_ms` in KiB·ms.
    """

    start_s: int
    end_s: int
    groups: dict[Group, Counter[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """What is asked.

    Attributes:
        start_s: Inclusive.
        end_s: Exclusive.
        width_s: Of a bucket: an hour or a day.
        group_by: Of `project_id`, `api_key_id`, `model`, `program`.
        keys: Only these keys, if any.
        models: Only these models, if any.
    """

    start_s: int
    end_s: int
    width_s: int
    group_by: Collection[str] = ()
    keys: Collection[str] = ()
    models: Collection[str] = ()


async def usage(store: TenancyStore, tenants: Sequence[str], query: Query) -> list[Bucket]:
    """Buckets in order, those with nothing in them too.

    Raises:
        QuotaStoreUnavailable: Redis did not answer.
    """
    begin_s = query.start_s - query.start_s % query.width_s
    buckets = [Bucket(start_s, start_s + query.width_s, {}) for start_s in range(begin_s, query.end_s, query.width_s)]
    days = list(_days(begin_s, query.end_s))
    for tenant in tenants:
        for day, fields in (await store.usage(tenant, days)).items():
            day_s = int(datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC).timestamp())
            _add(buckets, tenant, day_s, fields, query)
    return buckets


def _add(buckets: list[Bucket], tenant: str, day_s: int, fields: Record, query: Query) -> None:
    kept = _kept(query)
    for name, value in fields.items():
        parts = name.split("|")
        at_s = day_s + int(parts[0]) * HOUR_S
        place = (at_s - buckets[0].start_s) // query.width_s if buckets else -1
        if not 0 <= place < len(buckets) or not query.start_s - query.start_s % HOUR_S <= at_s < query.end_s:
            continue
        # What memory has cost is known of the tenant alone.
        key, model, program, what = parts[1:] if len(parts) == 5 else ("", "", "", parts[1])
        if (query.keys and key not in query.keys) or (query.models and model not in query.models):
            continue
        number = int(value)
        if what in ("kv_s", "kv_r"):
            what, number = "kv_ms", number * 1000 if what == "kv_s" else number
        buckets[place].groups.setdefault(kept(tenant, key, model, program), Counter())[what] += number


def _kept(query: Query) -> Callable[[str, str, str, str], Group]:
    by = query.group_by

    def kept(tenant: str, key: str, model: str, program: str) -> Group:
        return (
            tenant if "project_id" in by else "",
            key if "api_key_id" in by else "",
            model if "model" in by else "",
            program if "program" in by else "",
        )

    return kept


def _days(start_s: int, end_s: int) -> Iterable[str]:
    day = datetime.fromtimestamp(start_s, UTC).date()
    last = datetime.fromtimestamp(max(start_s, end_s - 1), UTC).date()
    while day <= last:
        yield day.strftime("%Y%m%d")
        day += timedelta(days=1)
