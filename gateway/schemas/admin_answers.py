"""What administrators are answered; for the API's description. Where OpenAI has the same, the names are OpenAI's."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

StateName = Literal["active", "shadow", "suspended", "archived"]


class Project(TypedDict):
    """A tenant."""

    id: str
    object: Literal["organization.project"]
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]
    state: StateName


class _Page(TypedDict):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ProjectList(_Page):
    """A page of tenants."""

    data: list[Project]


class ServiceAccount(TypedDict):
    """What keys have in common."""

    id: str
    object: Literal["organization.project.service_account"]
    name: str
    role: Literal["member"]
    created_at: int


class ServiceAccountKey(TypedDict):
    """A key that has just been made; its value is told once."""

    id: str
    object: Literal["organization.project.service_account.api_key"]
    name: str
    value: str
    created_at: int
    expires_at: int | None


class NewServiceAccount(ServiceAccount):
    """A service account with its first key."""

    api_key: ServiceAccountKey


class ServiceAccountList(_Page):
    """A page of service accounts."""

    data: list[ServiceAccount]


class DeletedServiceAccount(TypedDict):
    """A service account that is not there any more."""

    id: str
    object: Literal["organization.project.service_account.deleted"]
    deleted: Literal[True]


class KeyOwner(TypedDict):
    """Whom a key was made for."""

    type: Literal["service_account"]
    service_account: ServiceAccount | None
    user: None


class KeyLimitsBody(TypedDict):
    """Limits of a key; null is none."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None


class ProjectApiKey(TypedDict):
    """A key, without its secret."""

    id: str
    object: Literal["organization.project.api_key"]
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner: KeyOwner
    owner_project_access: Literal["active", "inactive"]
    scopes: list[str]
    disabled: bool
    overlap_until: int | None
    limits: KeyLimitsBody


class NewApiKey(ProjectApiKey):
    """A key that has just been made or rotated; its value is told once."""

    value: str


class ProjectApiKeyList(_Page):
    """A page of keys."""

    data: list[ProjectApiKey]


class DeletedApiKey(TypedDict):
    """A key that is not there any more."""

    id: str
    object: Literal["organization.project.api_key.deleted"]
    deleted: Literal[True]


class RateLimit(TypedDict):
    """Rates of a tenant; the largest number that can be set stands for none."""

    id: str
    object: Literal["project.rate_limit"]
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int


class RateLimitList(_Page):
    """The one entry."""

    data: list[RateLimit]


class AdminApiKey(TypedDict):
    """A key of an administrator; `value` is told once, when it is made."""

    id: str
    object: Literal["organization.admin_api_key"]
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    owner: dict[str, Any]
    value: NotRequired[str]


class AdminApiKeyList(_Page):
    """A page of keys."""

    data: list[AdminApiKey]


class DeletedAdminApiKey(TypedDict):
    """A key that is not there any more."""

    id: str
    object: Literal["organization.admin_api_key.deleted"]
    deleted: Literal[True]


class UsageResult(TypedDict):
    """Requests and tokens of one group."""

    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    model: str | None
    program: str | None
    user_id: None
    batch: None


class UsageBucket(TypedDict):
    """Usage in a span of time."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[UsageResult]


class UsagePage(TypedDict):
    """Buckets in order."""

    object: Literal["page"]
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


class CostsResult(TypedDict):
    """Memory times time of one group."""

    object: Literal["organization.costs.result"]
    amount: None
    line_item: Literal["kv"]
    project_id: str | None
    quantity: float
    quantity_unit: Literal["gibibyte_hours"]
    kib_seconds: float


class CostsBucket(TypedDict):
    """Memory times time in a span of time."""

    object: Literal["bucket"]
    start_time: int
    end_time: int
    results: list[CostsResult]


class CostsPage(TypedDict):
    """Buckets in order."""

    object: Literal["page"]
    data: list[CostsBucket]
    has_more: bool
    next_page: str | None


class AuditProject(TypedDict):
    """The tenant that a line is about."""

    id: str


class AuditLog(TypedDict):
    """A change that somebody made."""

    id: str
    object: Literal["organization.audit_log"]
    type: str
    effective_at: int
    actor: dict[str, Any]
    project: AuditProject | None
    target: str
    details: dict[str, Any]


class AuditLogList(_Page):
    """A page of the audit."""

    data: list[AuditLog]


class Denial(TypedDict):
    """Something that was refused, or would have been of a tenant in shadow."""

    id: str
    at: int
    project_id: str
    api_key_id: str | None
    reason: str
    limit_source: str
    limit: int
    used: int
    shadow: bool


class DenialList(TypedDict):
    """What was refused lately."""

    object: Literal["list"]
    data: list[Denial]


class LedgerEntry(TypedDict):
    """Something that happened to a KV account."""

    id: str
    object: Literal["ledger.entry"]
    at: int
    kind: str
    project_id: str
    details: dict[str, str]


class Ledger(_Page):
    """A page of the ledger."""

    data: list[LedgerEntry]


class TenantLimitsBody(KeyLimitsBody):
    """Limits of a tenant; null is none."""

    kv_kib_seconds: int | None
    kv_window: str
    kv_soft_percent: int | None
    resident_kib: int | None
    weight: int | None


class KvUsage(TypedDict):
    """What a tenant uses now."""

    used_kib_seconds: float
    used_estimate_kib_seconds: float
    held_kib_seconds: float
    remaining_kib_seconds: float | None
    life_kib_seconds: float
    level_kib: int
    peak_kib: int
    window_begins_at: int | None
    resets_at: int | None
    num_running: int


class EngineGrant(TypedDict):
    """What one engine holds of a tenant."""

    name: str
    level_kib: int
    granted_kib_seconds: float
    heard_at: float


class KvLimit(TypedDict):
    """A tenant's limits, and what it uses of them."""

    id: str
    object: Literal["kv_limit"]
    project_id: str
    name: str
    state: StateName
    limits: TenantLimitsBody
    usage: KvUsage
    engines: list[EngineGrant]
    version: str


class KvLimitList(_Page):
    """A page of tenants with their limits."""

    data: list[KvLimit]


class KeyEntryBody(TypedDict):
    """A key in a file; no secret can be read from it."""

    id: str
    name: str
    hash: str
    tail: str
    scopes: str
    disabled: bool
    created_at: int
    expires_at: int
    service_account: str
    limits: dict[str, int]


class TenantEntryBody(TypedDict):
    """A tenant in a file."""

    id: str
    name: str
    created_at: int
    limits: dict[str, Any]
    keys: list[KeyEntryBody]


class Configuration(TypedDict):
    """All tenants, limits and keys."""

    object: Literal["wye.tenants"]
    version: int
    tenants: list[TenantEntryBody]
    admin_keys: list[KeyEntryBody]


class ImportDone(TypedDict):
    """Ids by what became of them, or would."""

    object: Literal["import"]
    dry_run: bool
    created: list[str]
    updated: list[str]
    unchanged: list[str]


class QuotaKey(TypedDict):
    """The key that asks."""

    id: str
    name: str
    scopes: list[str]
    expires_at: int | None
    limits: KeyLimitsBody


class Quota(TypedDict):
    """What the caller may use, and what is left."""

    object: Literal["quota"]
    project_id: str
    name: str
    state: StateName
    limits: TenantLimitsBody
    usage: KvUsage
    api_key: QuotaKey


ADMIN_ANSWERS: dict[str, Any] = {
    "POST /v1/organization/projects": Project,
    "GET /v1/organization/projects": ProjectList,
    "GET /v1/organization/projects/{project_id}": Project,
    "POST /v1/organization/projects/{project_id}": Project,
    "POST /v1/organization/projects/{project_id}/archive": Project,
    "POST /v1/organization/projects/{project_id}/service_accounts": NewServiceAccount,
    "GET /v1/organization/projects/{project_id}/service_accounts": ServiceAccountList,
    "GET /v1/organization/projects/{project_id}/service_accounts/{service_account_id}": ServiceAccount,
    "DELETE /v1/organization/projects/{project_id}/service_accounts/{service_account_id}": DeletedServiceAccount,
    "POST /v1/organization/projects/{project_id}/service_accounts/{service_account_id}/api_keys": ServiceAccountKey,
    "GET /v1/organization/projects/{project_id}/api_keys": ProjectApiKeyList,
    "GET /v1/organization/projects/{project_id}/api_keys/{api_key_id}": ProjectApiKey,
    "POST /v1/organization/projects/{project_id}/api_keys/{api_key_id}": ProjectApiKey,
    "DELETE /v1/organization/projects/{project_id}/api_keys/{api_key_id}": DeletedApiKey,
    "POST /v1/admin/projects/{project_id}/api_keys": NewApiKey,
    "POST /v1/admin/projects/{project_id}/api_keys/{api_key_id}/rotate": NewApiKey,
    "GET /v1/organization/projects/{project_id}/rate_limits": RateLimitList,
    "POST /v1/organization/projects/{project_id}/rate_limits/{rate_limit_id}": RateLimit,
    "POST /v1/organization/admin_api_keys": AdminApiKey,
    "GET /v1/organization/admin_api_keys": AdminApiKeyList,
    "GET /v1/organization/admin_api_keys/{key_id}": AdminApiKey,
    "DELETE /v1/organization/admin_api_keys/{key_id}": DeletedAdminApiKey,
    "GET /v1/organization/usage/completions": UsagePage,
    "GET /v1/organization/costs": CostsPage,
    "GET /v1/organization/audit_logs": AuditLogList,
    "GET /v1/admin/denials": DenialList,
    "GET /v1/admin/ledger": Ledger,
    "GET /v1/admin/kv_limits": KvLimitList,
    "GET /v1/admin/kv_limits/{project_id}": KvLimit,
    "POST /v1/admin/kv_limits/{project_id}": KvLimit,
    "POST /v1/admin/kv_limits/{project_id}/adjust": KvLimit,
    "GET /v1/admin/export": Configuration,
    "POST /v1/admin/import": ImportDone,
    "GET /v1/quota": Quota,
}
"""The type of every answer to administrators, and of `/v1/quota`, by method and path."""
