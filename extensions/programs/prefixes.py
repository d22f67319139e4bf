"""Histories that outlive a run: exported under a name, and gone on from by later ones."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import msgspec

from engine.contexts.edits import Edit
from extensions.errors import NotResumable
from extensions.exports import Imported, Recipe, import_like
from extensions.journal.effects import effect
from extensions.journal.journal import current
from extensions.programs.faults import fault, invalid
from extensions.programs.history import History
from extensions.programs.jsons import checked_name, seconds
from extensions.programs.transcript import Transcript

if TYPE_CHECKING:
    from extensions.live_context import LiveContext
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.scope import RunScope

Visibility = Literal["private", "tenant", "shared"]
"""Who may import: whoever has the same API key; every key of the tenant; every tenant."""

OnMiss = Literal["recompute", "fail", "none"]
"""What becomes of an import whose KV is not there."""

MAX_NAME_CHARS = 128
MAX_ALLOWED = 64
"""Most labels that one export names."""

_NAME = re.compile(r"[a-z0-9._-]+(/[a-z0-9._-]+)*")
_DOTS = re.compile(r"(^|/)\.+(/|$)")
_VERBS = ("/warm", "/evict")
"""What names in a URL may be followed by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportWish:
    """How a history is to be kept.

    Attributes:
        name: Its name.
        ttl_s: For how long after it was used last; None for what the server has for that.
        visibility: Who may import it.
        allow: Labels of those who may, of those that it is visible to; empty for all of them.
        transcript: What is known of the history as a conversation.
    """

    name: str
    ttl_s: float | None = None
    visibility: Visibility = "tenant"
    allow: tuple[str, ...] = ()
    transcript: Transcript = field(default_factory=Transcript)


class Prefixes(Protocol):
    """Exported histories, as the programs of one run may use them.

    All of it raises `RuntimeError` (`store_unavailable`) where the store does not answer.
    """

    async def export(self, live: LiveContext, wish: ExportWish) -> str:
        """Keeps a computed history under a name, and returns the id of what is kept.

        Raises:
            ValueError: It cannot be kept so (`invalid_argument`).
            PermissionError: The one for whom the run is may not make prefixes (`capability_denied`).
            MemoryError: There is no room (`limit_exceeded`).
        """
        ...

    async def open(self, name: str, on_miss: OnMiss) -> tuple[Imported, Transcript] | None:
        """A context that goes on from an export; None if there is none and `on_miss` is `none`.

        Raises:
            LookupError: There is none of that name (`prefix_not_found`).
            ValueError: Another model made it (`fingerprint_mismatch`).
            RuntimeError: Its time is over, or its KV is gone and `on_miss` is `fail` (`prefix_lost`).
        """
        ...


class PrefixCalls:
    """What `lm` can do with exported histories."""

    _scope: RunScope

    async def prefix(self, name: str, *, on_miss: str = "recompute") -> ScriptContext | None:
        """A context that goes on from an export."""
        from extensions.programs.contexts import ScriptContext

        if on_miss not in get_args(OnMiss):
            raise invalid(f"on_miss must be one of {', '.join(get_args(OnMiss))}")
        scope, prefixes = self._scope, _door(self._scope)
        wanted = checked_name(name, "name")
        scope.guard.open_contexts(1)
        try:
            found = await _opened(scope, prefixes, wanted, on_miss)  # type: ignore[arg-type]  # one, as seen above
        except BaseException:
            scope.guard.close_context()
            raise
        if found is None:
            scope.guard.close_context()
            return None
        imported, transcript = found
        return ScriptContext(scope, History(scope, imported.live, transcript, imported.num_computed))


async def _opened(
    scope: RunScope, prefixes: Prefixes, name: str, on_miss: OnMiss
) -> tuple[Imported, Transcript] | None:
    """A context that goes on from an export.

    In a run that keeps a journal, all that it takes to make it again is written down: what becomes of the export, or of
    its name, before the run is gone on with is nothing to it.
    """
    if current() is None:
        return await prefixes.open(name, on_miss)
    told: _Opened | None = await effect(
        "prefix",
        [name, on_miss],
        lambda: _recipe_of(scope, prefixes, name, on_miss),
        pack=lambda made: None if made is None else msgspec.to_builtins(made, builtin_types=(bytes,)),
        unpack=lambda data: None if data is None else msgspec.convert(data, _Opened),
    )
    if told is None:
        return None
    if told.adapter_digest != _digest_of(scope, told.adapter):
        raise NotResumable(f"it goes on from a prefix of the adapter {told.adapter}, which is another by now")
    token_ids = array("i")
    token_ids.frombytes(told.token_ids)
    recipe = Recipe(token_ids=token_ids, edits=tuple(told.edits), adapter=told.adapter)
    found = await import_like(scope.open_context(told.adapter), recipe, told.export_id)
    return replace(found, num_computed=told.num_computed), transcript_from_bytes(told.transcript)


class _Opened(msgspec.Struct, frozen=True):
    """A context that goes on from an export, as it is written down.

    Attributes:
        token_ids: Native int32.
        edits: See `Recipe`.
        adapter: See `Recipe`.
        adapter_digest: Of that adapter; empty for the model alone.
        export_id: Name of the export in the engine.
        num_computed: See `Imported`.
        transcript: JSON.
    """

    token_ids: bytes
    edits: list[Edit]
    adapter: str
    adapter_digest: str
    export_id: str
    num_computed: int
    transcript: bytes


async def _recipe_of(scope: RunScope, prefixes: Prefixes, name: str, on_miss: OnMiss) -> _Opened | None:
    found = await prefixes.open(name, on_miss)
    if found is None:
        return None
    imported, transcript = found
    live = imported.live
    try:
        return _Opened(
            token_ids=array("i", live.token_ids).tobytes(),
            edits=list(live.edits),
            adapter=live.adapter,
            adapter_digest=_digest_of(scope, live.adapter),
            export_id=imported.export_id,
            num_computed=imported.num_computed,
            transcript=transcript_to_bytes(transcript),
        )
    finally:
        live.release()


def _digest_of(scope: RunScope, adapter: str) -> str:
    return next((one.digest for one in scope.engine.info.adapters if one.name == adapter), "")


async def export(scope: RunScope, history: History, name: Any, ttl_s: Any, visibility: Any, allow: Any) -> str:
    """Keeps a history of a run whose tokens are computed.

    Raises:
        ValueError: An argument is not what it must be (`invalid_argument`).
        RuntimeError: There is nowhere to keep it (`capability_missing`), or the store does not answer.
        MemoryError: There is no room (`limit_exceeded`).
    """
    prefixes = _door(scope)
    if (wrong := name_error(name)) is not None:
        raise invalid(f"name {wrong}")
    ttl = seconds(ttl_s, "ttl_s")
    if ttl is not None and ttl < 1:
        raise invalid("ttl_s must be at least 1")
    if visibility not in get_args(Visibility):
        raise invalid(f"visibility must be one of {', '.join(get_args(Visibility))}")
    if not isinstance(allow, Sequence) or isinstance(allow, str) or len(allow) > MAX_ALLOWED:
        raise invalid(f"allow must be a list of at most {MAX_ALLOWED} labels")
    labels = tuple(checked_name(label, f"allow[{at}]") for at, label in enumerate(allow))
    if not history.live.length:
        raise invalid("the context is empty: there is nothing to export")
    wish = ExportWish(name=name, ttl_s=ttl, visibility=visibility, allow=labels, transcript=history.transcript)
    with history.exporting():
        return await effect("export", name, lambda: prefixes.export(history.live, wish))


def name_error(name: object) -> str | None:
    """What is wrong with the name of an export, or None."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        return f"must be a text of 1 to {MAX_NAME_CHARS} characters"
    if _NAME.fullmatch(name) is None:
        return "must be of a-z, 0-9, '.', '_', '-' and single '/' between them"
    if _DOTS.search(name) is not None:
        return "must have no part that is dots alone"
    if name.startswith("pfx_") or f"/{name}".endswith(_VERBS):
        return "must not begin with 'pfx_', nor end with 'warm' or 'evict' as its last part"
    return None


def transcript_to_bytes(transcript: Transcript) -> bytes:
    """A transcript to be kept."""
    return msgspec.json.encode(transcript)


def transcript_from_bytes(data: bytes) -> Transcript:
    """A transcript that was kept."""
    return msgspec.json.decode(data, type=_Kept).transcript


class _Kept(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]] = []
    num_fixed: int = 0
    num_fixed_messages: int = 0
    is_open: bool = False
    tools: list[dict[str, Any]] = []

    @property
    def transcript(self) -> Transcript:
        return Transcript(
            messages=tuple(self.messages),
            num_fixed=self.num_fixed,
            num_fixed_messages=self.num_fixed_messages,
            is_open=self.is_open,
            tools=tuple(self.tools),
        )


def _door(scope: RunScope) -> Prefixes:
    prefixes = scope.world.prefixes
    if prefixes is None:
        raise fault("capability_missing", "this server keeps no prefixes: it has no Redis")
    return prefixes
