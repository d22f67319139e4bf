"""Runs whose process or engine has died begin again from their journals."""

from __future__ import annotations

import asyncio
import time

from engine.errors import EngineStopped
from extensions.errors import NotResumable
from extensions.journal.doors import RECEIVED
from extensions.journal.entries import unpacked
from extensions.journal.journal import Journal
from extensions.journal.replay import Replay
from extensions.programs.run import ProgramRun
from extensions.runtime import Runtime
from gateway.errors import NotFound
from gateway.programs.running import ProgramStarter
from gateway.programs.work import ProgramWork
from gateway.runs.inbox import RunInbox
from gateway.runs.journal import RunJournal
from gateway.runs.origins import Origin, origin_of, read_origin
from gateway.state.bells import Bells
from gateway.state.run_store import RunRecord, RunStore
from gateway.tenancy.build import Tenancy
from gateway.tenancy.payer import Payer
from gateway.tenancy.principal import TENANT_MARK
from gateway.tenancy.refusals import refusal

ENGINE_WAIT_S = 120.0
"""How long a run waits for an engine to be there again."""

_POLL_S = 0.05


class Reviver:
    """Begins runs again.

    Args:
        programs: Starts them.
        runtime: Where they run.
        store: Has their journals.
        bells: Ring for their input.
        tenants: Who may use how much; None without tenants.
    """

    def __init__(
        self, programs: ProgramStarter, runtime: Runtime, store: RunStore, bells: Bells, tenants: Tenancy | None
    ) -> None:
        self._programs = programs
        self._runtime = runtime
        self._store = store
        self._bells = bells
        self._tenants = tenants

    async def run(self, run_id: str, journal: RunJournal, payer: Payer) -> ProgramRun:
        """A run that begins again, and goes on where its journal ends.

        Args:
            run_id: Which.
            journal: Where it is written down from here on.
            payer: Who pays.

        Raises:
            NotFound: There is no such run any more.
            NotResumable: It cannot be gone on with here.
            EngineStopped: No engine came back.
            StoreUnavailable: Redis did not answer.
            Exception: What `ProgramStarter.run` raises.
        """
        record = await self._store.find(run_id)
        data, parts = await self._store.journal(run_id)
        if record is None or not data:
            raise NotFound(f"Run with id '{run_id}' not found.", "run_id")
        origin, replay = read_origin(data), Replay(unpacked(parts))
        await self._wait_for_engine()
        if self._runtime.info.fingerprint != origin.fingerprint:
            raise NotResumable("another model is served by now")
        return await self._programs.run(
            await self._programs.finder.check(origin.source),
            origin.program_request,
            record.owner,
            salt=origin.salt,
            payer=payer,
            limits=origin.program_limits,
            inbox=RunInbox(self._store, self._bells, run_id, place=replay.num_done(RECEIVED)),
            journal=Journal(journal, replay),
            age_s=max(time.time() - record.created - record.parked_s, 0.0),
        )

    @property
    def is_ready(self) -> bool:
        """Whether there is an engine."""
        return self._runtime.is_ready

    async def is_foreign(self, run_id: str) -> bool:
        """Whether a run is not for this process: another model is served here.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        data = await self._store.origin(run_id)
        return not data or read_origin(data).fingerprint != self._runtime.info.fingerprint

    async def take_over(self, record: RunRecord, journal: RunJournal) -> ProgramWork:
        """A run of a process that is gone, begun again here. Raises what `run` raises.

        Raises:
            PermissionDenied: The tenant may run nothing any more.
            LimitReached: It has no quota left.
            QuotaStoreUnavailable: Redis did not answer.
        """
        data = await self._store.origin(record.id)
        if not data:
            raise NotResumable("its journal is not kept any more")
        origin = read_origin(data)
        payer = await self._payer(record, origin)
        try:
            run = await self.run(record.id, journal, payer)
            return ProgramWork(run, payer, model=origin.program_request.model)
        finally:
            if payer.ticket is not None:
                payer.ticket.leave()

    def origin(self, run: ProgramRun, payer: Payer) -> bytes:
        """What another process needs to begin a run again; nothing if that cannot be told."""
        try:
            return origin_of(run, payer, self._runtime.info.fingerprint)
        except (TypeError, ValueError, OverflowError, RecursionError, EngineStopped):
            return b""

    async def _payer(self, record: RunRecord, origin: Origin) -> Payer:
        if self._tenants is None or not record.owner.startswith(TENANT_MARK):
            return Payer(record.owner, origin.salt, None, origin.scopes)
        verdict, ticket = await self._tenants.gate.admit_own(record.owner)
        if ticket is None:
            raise refusal(verdict, "")
        ticket.key_id = origin.key_id
        return Payer(record.owner, origin.salt, ticket, origin.scopes)

    async def _wait_for_engine(self) -> None:
        deadline_s = time.monotonic() + ENGINE_WAIT_S
        # Polled, as the engine's door has no event for it; waits are rare.
        while not self._runtime.is_ready and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
