"""Bodies of requests of administrators: OpenAI's where it has the same, with all fields that its SDKs send."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gateway.schemas.base import INT64_MAX, StrictModel
from gateway.tenancy.limits import MAX_KV_KIB_S, MAX_RATE, State

MAX_SECONDS = 10 * 366 * 24 * 3600

Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Scopes = Annotated[list[str], Field(max_length=64)]
Rate = Annotated[int, Field(ge=1, le=MAX_RATE)]
Kib = Annotated[int, Field(ge=1, le=MAX_KV_KIB_S)]


class ProjectRequest(StrictModel):
    """Makes a tenant, or gives it another name.

    Attributes:
        name: For people.
        geography: Not supported: everything is where the server is.
    """

    unsupported: ClassVar = {"geography": (), "residency": (), "external_key_id": ()}

    name: Name


class ServiceAccountRequest(StrictModel):
    """Makes a service account with its first key.

    Attributes:
        name: Of both.
        expires_in_seconds: Until the key opens nothing more; never if left out.
        create_service_account_only: Not supported: an account here is what its keys have in common.
    """

    unsupported: ClassVar = {"create_service_account_only": (False,)}

    name: Name
    expires_in_seconds: Seconds | None = None


class KeyLimitFields(StrictModel):
    """Limits of a key, besides those of its tenant; null is no limit.

    Attributes:
        requests_per_minute: Requests that begin.
        tokens_per_minute: Of prompts and answers.
        concurrency: Requests at once.
    """

    requests_per_minute: Rate | None = None
    tokens_per_minute: Rate | None = None
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class KeyRequest(KeyLimitFields):
    """Makes a key.

    Attributes:
        name: For people.
        scopes: What it may do; everything if left out or empty.
        expires_in_seconds: Until it opens nothing more; never if left out.
    """

    name: Name = "API key"
    scopes: Scopes = Field(default_factory=list)
    expires_in_seconds: Seconds | None = None


class KeyUpdate(KeyLimitFields):
    """Changes what it names of a key; a limit of null is taken away.

    Attributes:
        name: For people.
        scopes: What it may do; an empty list is everything.
        expires_in_seconds: From now on.
        disabled: It opens nothing while this is true.
    """

    name: Name | None = None
    scopes: Scopes | None = None
    expires_in_seconds: Seconds | None = None
    disabled: bool | None = None


class RotateRequest(StrictModel):
    """Gives a key another secret.

    Attributes:
        overlap_seconds: The old one opens the same for so long; 0 ends it at once.
    """

    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] = 0


class AdminKeyRequest(StrictModel):
    """Makes a key of an administrator.

    Attributes:
        name: For people.
        expires_in_seconds: Until it opens nothing more; never if left out.
    """

    name: Name
    expires_in_seconds: Seconds | None = None


class RateLimitUpdate(StrictModel):
    """Changes the rates of a tenant, as OpenAI's API does.

    Attributes:
        max_requests_per_1_minute: Requests that begin.
        max_tokens_per_1_minute: Of prompts and answers.
    """

    unsupported: ClassVar = {
        "batch_1_day_max_input_tokens": (),
        "max_audio_megabytes_per_1_minute": (),
        "max_images_per_1_minute": (),
        "max_requests_per_1_day": (),
    }

    max_requests_per_1_minute: Rate | None = None
    max_tokens_per_1_minute: Rate | None = None


class TenantUpdate(KeyLimitFields):
    """Changes what it names of a tenant; a limit of null is taken away.

    Attributes:
        state: `active`, `shadow` (limits are counted and not enforced) or `suspended`.
        kv_kib_seconds: Memory of the model times seconds, in a window.
        kv_window: `hour`, `day`, `week` or `month`, with `@` and a time zone, or `rolling:SECONDS`.
        kv_soft_percent: Of the quota, at which the ledger says so.
        resident_kib: Memory of the model at once.
        weight: Share of a busy engine, against other tenants; 1 if left out.
    """

    state: State | None = None
    kv_kib_seconds: Kib | None = None
    kv_window: Annotated[str, Field(max_length=100)] | None = None
    kv_soft_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    resident_kib: Kib | None = None
    weight: Annotated[int, Field(ge=1, le=1000)] | None = None


class AdjustRequest(StrictModel):
    """Corrects what a tenant used in its window.

    Attributes:
        kib_seconds: To add; a negative number takes off.
        reason: For the audit.
        operation: The same name again changes nothing more.
    """

    kib_seconds: Annotated[int, Field(ge=-MAX_KV_KIB_S, le=MAX_KV_KIB_S)]
    reason: Name
    operation: Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_.-]*$")] = ""


class KeyEntry(StrictModel):
    """A key in a file: its secret is not there, only what it is compared with.

    Attributes:
        id: `key_...`.
        name: For people.
        hash: Of the secret.
        tail: Last characters of the secret.
        scopes: What it may do.
        disabled: It opens nothing.
        created_at: In seconds.
        expires_at: In seconds; 0 for never.
        service_account: That it was made for; empty for none.
        limits: Its own.
    """

    id: Annotated[str, Field(pattern=r"^key_[0-9a-z]{16}$")]
    name: Name
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tail: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{4}$")]
    scopes: Annotated[str, Field(max_length=1000)] = "*"
    disabled: bool = False
    created_at: Annotated[int, Field(ge=0, le=INT64_MAX)]
    expires_at: Annotated[int, Field(ge=0, le=2**40)] = 0
    service_account: Annotated[str, Field(max_length=64, pattern=r"^[0-9a-z_]*$")] = ""
    limits: KeyLimitFields = KeyLimitFields()


class TenantEntry(StrictModel):
    """A tenant in a file.

    Attributes:
        id: `proj_...`.
        name: For people.
        created_at: In seconds.
        limits: All of them, and its state.
        keys: All of them.
    """

    id: Annotated[str, Field(pattern=r"^proj_[0-9a-z]{1,40}$")]
    name: Name
    created_at: Annotated[int, Field(ge=0, le=INT64_MAX)]
    limits: TenantUpdate
    keys: Annotated[list[KeyEntry], Field(max_length=100_000)] = Field(default_factory=list)


class ConfigurationFile(StrictModel):
    """All tenants, their limits and their keys, as one file.

    Attributes:
        object: What it is.
        version: Of its form.
        tenants: All of them.
        admin_keys: Keys of administrators, that of the settings aside.
    """

    object: Annotated[str, Field(pattern=r"^wye\.tenants$")]
    version: Annotated[int, Field(ge=1, le=1)]
    tenants: Annotated[list[TenantEntry], Field(max_length=100_000)] = Field(default_factory=list)
    admin_keys: Annotated[list[KeyEntry], Field(max_length=10_000)] = Field(default_factory=list)
