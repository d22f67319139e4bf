"""What is answered to the console: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ServerNow(TypedDict):
    """One gateway process."""

    version: str
    started_at: float
    active_requests: int
    is_draining: bool
    redis: Literal["none", "private", "given by URL"]
    workers: int
    has_tenants: bool


class EngineNow(TypedDict):
    """The engine and its counters."""

    model: str
    architecture: str
    device: str
    dtype: str
    step: str
    attention_backend: str
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    step_seconds: float


class AccountNow(TypedDict):
    """What KV one account pays for, and has been charged since the engine began; `name` is the tenant's."""

    account: str
    name: str | None
    kib: int
    charged_kib_s: int


class KVNow(TypedDict):
    """The pool."""

    page_kib: int
    pages: int
    used_pages: int
    cached_pages: int
    host_pages: int
    contexts: int
    leases: int
    revoked_leases: int
    demoted_contexts: int
    accounts: list[AccountNow]


class PagesNow(TypedDict):
    """Pages of one tier in their order: three numbers a run, see docs/console.md."""

    pages: int
    cell_pages: int
    runs: list[int]


class LeaseNow(TypedDict):
    """What a lease says."""

    value: float
    on_pressure: Literal["host", "tokens", "release", "fail"]


class HolderNow(TypedDict):
    """Somebody who pays for pages; `name` is the tenant's."""

    account: str
    name: str | None
    kind: Literal["request", "context", "export", "kept", "others"]
    pages: int
    host_pages: int
    lease: LeaseNow | None
    expires_at: float | None
    idle_s: float | None


class KVMapNow(TypedDict):
    """Who holds the KV pool, page by page."""

    object: Literal["kv_map"]
    at: float
    page_bytes: int
    page_tokens: int
    device: PagesNow
    host: PagesNow
    holders: list[HolderNow]
    num_holders: int


class ProgramNow(TypedDict):
    """A program that has not ended."""

    id: str
    program: str
    tenant: str
    wall_s: float
    contexts: int
    generations: int
    prompt_tokens: int
    completion_tokens: int
    host_calls: int


class Overview(TypedDict):
    """What a server does now."""

    object: Literal["overview"]
    at: float
    server: ServerNow
    engine: EngineNow | None
    kv: KVNow | None
    programs: list[ProgramNow]
