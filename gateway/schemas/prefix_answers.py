"""What is answered about prefixes: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class PrefixUsage(TypedDict):
    """What has become of a prefix."""

    imports: int
    hit_tokens: int
    charged_kib_seconds: float


class PrefixObject(TypedDict):
    """An exported prefix."""

    id: str
    object: Literal["prefix"]
    name: str
    version: int
    model: str
    fingerprint: str
    tokens: int
    token_sha256: str
    bytes: int
    status: Literal["warm", "cold"]
    recomputable: bool
    created_at: int
    last_used_at: int
    expires_at: int
    ttl: float
    ttl_mode: Literal["fixed", "sliding"]
    owner: str
    program: str | None
    visibility: Literal["private", "tenant", "shared"]
    allow: list[str]
    metadata: dict[str, str]
    usage: PrefixUsage
    etag: str


class PrefixList(TypedDict):
    """A page of a list of prefixes."""

    object: Literal["list"]
    data: list[PrefixObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedPrefix(TypedDict):
    """A prefix that is not there any more."""

    id: str
    object: Literal["prefix.deleted"]
    deleted: bool
    charged_kib_seconds: float


class Retained(TypedDict):
    """What has been kept of a request that wanted it, and until when; or why nothing was."""

    status: Literal["kept", "not_kept"]
    tokens: int
    bytes: int
    expires_at: int | None
    reason: Literal["max_bytes", "quota", "engine"] | None


class PrefixUsed(TypedDict):
    """What a request found of the prefix that it named."""

    prefix_id: str
    prefix_status: Literal["warm", "cold"]
    recomputed: bool
