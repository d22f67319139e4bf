"""Held contexts of a scripted engine: histories, and nothing computed."""

from __future__ import annotations

from engine.contexts.commands import (
    AppendTokens,
    ContextCommand,
    ContextInfo,
    EndLease,
    ExportContext,
    ForkContext,
    ImportContext,
    KeepContext,
    KeepExport,
    OpenContext,
    ReleaseContexts,
    ReleaseExport,
    RetainContext,
    TruncateContext,
)
from engine.errors import SequenceNotFound
from engine.kv.overview import FREE, HolderKind, KVHolder, KVMap, PageRuns
from engine.messages import decode_command, encode


class ScriptedContexts:
    """Does what the engine's registry does to histories.

    Attributes:
        histories: Token ids by context; a test may look here for what is still held.
        num_opened: Contexts there ever were.
        leases: Ids of leases by context.
        exports: Token ids by export; a test may look here, or take some away.
        kept_ms: How long each export is to be kept.
        accounts: Who pays, by context that was opened.
        kept: Token ids by context that was left to the engine; none is ever ended here.
    """

    def __init__(self) -> None:
        self.histories: dict[str, list[int]] = {}
        self.num_opened = 0
        self.leases: dict[str, str] = {}
        self.exports: dict[str, list[int]] = {}
        self.kept_ms: dict[str, int] = {}
        self.kept: dict[str, list[int]] = {}
        self.accounts: dict[str, str] = {}

    def obey(self, command: ContextCommand) -> None:
        """Does as told; what names no context is ignored."""
        # What cannot cross to an engine process must fail here too.
        assert decode_command(encode(command)) == command
        match command:
            case OpenContext(context_id, account):
                self._add(context_id, [])
                self.accounts[context_id] = account
            case AppendTokens(context_id, token_ids, start) if context_id in self.histories:
                history = self.histories[context_id]
                history[len(history) if start is None else start :] = token_ids
            case ForkContext(context_id, new_ids) if context_id in self.histories:
                for new_id in new_ids:
                    self._add(new_id, self.histories[context_id])
            case TruncateContext(context_id, length, _) if context_id in self.histories:
                del self.histories[context_id][length:]
            case RetainContext(context_id, lease_id) if context_id in self.histories:
                self.leases[context_id] = lease_id
            case EndLease(context_id, lease_id) if self.leases.get(context_id) == lease_id:
                del self.leases[context_id]
            case KeepContext(context_id, lease_id) if context_id in self.histories:
                self.kept[context_id], self.leases[context_id] = self.histories.pop(context_id), lease_id
            case ExportContext(context_id, export_id, ttl_ms) if context_id in self.histories:
                self.exports[export_id], self.kept_ms[export_id] = list(self.histories[context_id]), ttl_ms
            case ImportContext(export_id, new_id) if export_id in self.exports:
                self._add(new_id, self.exports[export_id])
            case KeepExport(export_id, ttl_ms) if export_id in self.exports:
                self.kept_ms[export_id] = ttl_ms
            case ReleaseExport(export_id):
                self.exports.pop(export_id, None)
                self.kept_ms.pop(export_id, None)
            case ReleaseContexts(context_ids):
                for context_id in context_ids:
                    self.histories.pop(context_id, None)
                    self.leases.pop(context_id, None)

    def history(self, context_id: str) -> list[int]:
        """The tokens of one context, as they are kept.

        Raises:
            SequenceNotFound: There is none.
        """
        if context_id not in self.histories:
            raise SequenceNotFound("no such context")
        return self.histories[context_id]

    def describe(self, context_id: str) -> ContextInfo:
        """Says that everything but the last token is computed."""
        held = self.histories | self.exports | self.kept
        length = len(held.get(context_id, ()))
        computed = max(0, length - 1)
        pages = -(-computed // 16)
        return ContextInfo(
            length=length,
            num_computed=computed,
            num_pages=pages,
            residency="device" if pages else "tokens",
            lease_id=self.leases.get(context_id, ""),
        )

    def draw(self, num_pages: int) -> KVMap:
        """A map on which everything that is held lies side by side, each page for itself."""
        kinds: dict[HolderKind, dict[str, list[int]]] = {
            "context": self.histories,
            "kept": self.kept,
            "export": self.exports,
        }
        holders: list[KVHolder] = []
        runs: list[int] = []
        for kind, held in kinds.items():
            for context_id in held:
                size, account = self.describe(context_id).num_pages, self.accounts.get(context_id, "")
                value = 0.5 if context_id in self.leases else None
                runs += [size, len(holders), 1]
                holders.append(KVHolder(account=account, kind=kind, num_pages=size, value=value))
        left = num_pages - sum(holder.num_pages for holder in holders)
        device = PageRuns(num_pages=num_pages, cell_pages=1, runs=[*runs, left, FREE, 0])
        none = PageRuns(num_pages=0, cell_pages=1, runs=[])
        return KVMap(device=device, host=none, holders=holders, num_holders=len(holders))

    def _add(self, context_id: str, token_ids: list[int]) -> None:
        assert context_id not in self.histories, "context ids are unique"
        self.histories[context_id] = list(token_ids)
        self.num_opened += 1
