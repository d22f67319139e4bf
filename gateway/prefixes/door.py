"""Prefixes as programs reach them, and errors as programs meet them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from extensions.exports import Imported
from extensions.live_context import LiveContext
from extensions.programs.faults import fault, invalid
from extensions.programs.prefixes import ExportWish, OnMiss, transcript_from_bytes
from extensions.programs.transcript import Transcript
from gateway.errors import BadRequest, FingerprintMismatch, NotFound, PrefixLost, StoreUnavailable
from gateway.prefixes.asking import Asker
from gateway.prefixes.requested import RequestedPrefix
from gateway.prefixes.service import Making, PrefixService


class ProgramPrefixes:
    """Implements `extensions.programs.prefixes.Prefixes` for one run.

    Args:
        service: What there is.
        asker: For whom the run is.
        model: Name of the model that the request used.
        requested: What the run is there to make; None if it answers a request.
        may_export: The key that the run was begun with may make prefixes; whether it may use one, that one says.
    """

    def __init__(
        self,
        service: PrefixService,
        asker: Asker,
        model: str,
        requested: RequestedPrefix | None = None,
        *,
        may_export: bool = True,
    ) -> None:
        self._service = service
        self._asker = asker
        self._model = model
        self._requested = requested
        self._may_export = may_export

    async def export(self, live: LiveContext, wish: ExportWish) -> str:
        """See `Prefixes`."""
        service, asker, requested = self._service, self._asker, self._requested
        if not self._may_export:
            raise fault("capability_denied", "the API key lacks the scope 'prefixes'")
        with _told():
            if requested is not None and requested.name == wish.name:
                return (await requested.make(service, live, wish, asker)).id
            return (await service.create(live, wish, Making(model=self._model), asker)).id

    async def open(self, name: str, on_miss: OnMiss) -> tuple[Imported, Transcript] | None:
        """See `Prefixes`."""
        try:
            with _told():
                opened = await self._service.open(name, self._asker, fails=on_miss != "recompute")
        except Exception as error:
            if on_miss == "none" and isinstance(error.__cause__, NotFound | FingerprintMismatch | PrefixLost):
                return None
            raise
        return opened.imported, transcript_from_bytes(opened.record.transcript)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise fault("prefix_not_found", error.message) from error
    except PrefixLost as error:
        raise fault("prefix_lost", error.message) from error
    except FingerprintMismatch as error:
        raise fault("fingerprint_mismatch", error.message) from error
    except StoreUnavailable as error:
        raise fault("store_unavailable", error.message) from error
    except BadRequest as error:
        if error.code == "prefixes_full":
            raise fault("limit_exceeded", error.message) from error
        raise invalid(error.message) from error
