"""What the owner of held contexts tells the engine. Never answered: the owner keeps a mirror.

Ids are made by the owner. A command that names no context is ignored; computing on none is refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.contexts.edits import Edit
from engine.leases.lease import OnPressure


class OpenContext(msgspec.Struct, frozen=True, tag="open"):
    """Begins a context without tokens.

    Attributes:
        context_id: Unique over all owners and times.
        account: Opaque label that the KV meter charges.
        salt: Prefix pages are shared only with those of the same salt.
        adapter: Name of the adapter that computes its KV and continues it; empty for the model alone.
    """

    context_id: str
    account: str = ""
    salt: str = ""
    adapter: str = ""


class AppendTokens(msgspec.Struct, frozen=True, tag="append"):
    """Adds tokens to a history; they are computed when somebody computes on it.

    Attributes:
        context_id: Which context.
        token_ids: The tokens.
        start: Where they stand: what the history has there already stays as far as it is the same, KV and all, and
            goes as far as it is not. None for its end.
    """

    context_id: str
    token_ids: list[int]
    start: int | None = None


class ForkContext(msgspec.Struct, frozen=True, tag="fork"):
    """Begins contexts with the same history; all share its pages, copied only where one writes."""

    context_id: str
    new_ids: list[str]


class TruncateContext(msgspec.Struct, frozen=True, tag="truncate"):
    """Cuts a history to `length` tokens, if it is longer, and says which edits it has; what nothing needs is freed."""

    context_id: str
    length: int
    edits: tuple[Edit, ...] = ()


class ReleaseContexts(msgspec.Struct, frozen=True, tag="release"):
    """Ends contexts; what is computed on them ends with an error."""

    context_ids: list[str]


class RetainContext(msgspec.Struct, frozen=True, tag="retain"):
    """Wishes to keep a context's KV while nobody computes on it, instead of any wish before.

    Attributes:
        context_id: Which context.
        lease_id: Name of the lease, unique over all owners and times.
        ttl_ms: How long.
        max_kib: Most KV that it holds for.
        value: The chance that the context is used again, 0..1.
        on_pressure: What happens to the KV when others need the pages.
    """

    context_id: str
    lease_id: str
    ttl_ms: int
    max_kib: int
    value: float
    on_pressure: OnPressure


class EndLease(msgspec.Struct, frozen=True, tag="end_lease"):
    """Ends a lease; the context stays as any other."""

    context_id: str
    lease_id: str


class KeepContext(msgspec.Struct, frozen=True, tag="keep"):
    """Leaves a context to the engine, which holds it under a lease whatever becomes of its gateway, or ends it.

    The gateway has no say over it any more, but may ask what it holds; see `engine.leases.kept`.

    Attributes:
        context_id: Which context.
        lease_id: Name of the lease, unique over all owners and times.
        ttl_ms: How long.
        max_kib: Most KV that it holds for.
        value: The chance that a request begins with its history, 0..1.
        max_kept: Most contexts that are kept so for its account: the oldest give way to it.
    """

    context_id: str
    lease_id: str
    ttl_ms: int
    max_kib: int
    value: float
    max_kept: int


class ExportContext(msgspec.Struct, frozen=True, tag="export"):
    """Makes a fork of a context that belongs to no gateway; see `engine.contexts.exports`.

    Attributes:
        context_id: Which context.
        export_id: Name of the export, unique over all owners and times.
        ttl_ms: How long it is kept.
    """

    context_id: str
    export_id: str
    ttl_ms: int


class ImportContext(msgspec.Struct, frozen=True, tag="import"):
    """Begins a context of the asking gateway as a fork of an export; there is none afterwards if there is no export.

    Attributes:
        export_id: Which export.
        context_id: Of the new context.
        account: Opaque label that the KV meter charges for it.
        salt: Prefix pages are shared only with those of the same salt.
    """

    export_id: str
    context_id: str
    account: str = ""
    salt: str = ""


class KeepExport(msgspec.Struct, frozen=True, tag="keep_export"):
    """Keeps an export for so long from now on, instead of what was said before."""

    export_id: str
    ttl_ms: int


class ReleaseExport(msgspec.Struct, frozen=True, tag="release_export"):
    """Ends an export; what was forked from it stays."""

    export_id: str


ExportCommand = ExportContext | ImportContext | KeepExport | ReleaseExport
ContextCommand = (
    OpenContext
    | AppendTokens
    | ForkContext
    | TruncateContext
    | ReleaseContexts
    | RetainContext
    | EndLease
    | KeepContext
    | ExportContext
    | ImportContext
    | KeepExport
    | ReleaseExport
)

Residency = Literal["device", "host", "tokens"]
"""Where the KV of a context is: on the device, in host memory, or nowhere, to be computed again from its tokens."""


class ContextInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a context holds now.

    Attributes:
        length: Tokens of its history that the engine knows.
        num_computed: Those whose K and V are there.
        num_pages: Pages it holds.
        num_shared_pages: Those of them that others hold too, the prefix cache included.
        residency: Where its KV is.
        recomputable: Its KV can be computed again from its tokens.
        lease_id: Of the lease that it has; empty for none.
        kv_kib_ms: What its account was charged for it since it was opened, in KiB times milliseconds.
        charged_bytes: Bytes that its account is charged for it now: of pages that several hold one pays.
    """

    length: int
    num_computed: int = 0
    num_pages: int = 0
    num_shared_pages: int = 0
    residency: Residency = "tokens"
    recomputable: bool = True
    lease_id: str = ""
    kv_kib_ms: int = 0
    charged_bytes: int = 0
