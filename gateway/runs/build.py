"""Puts together what detached runs, and programs that talk to each other, need in one gateway process."""

from __future__ import annotations

from functools import partial

from extensions.runtime import Runtime
from gateway.errors import to_reply
from gateway.lifecycle import Lifecycle
from gateway.programs.finding import ProgramFinder
from gateway.programs.running import ProgramStarter
from gateway.runs.doors import Doors
from gateway.runs.reviving import Reviver
from gateway.runs.service import DetachedRuns
from gateway.settings import Settings
from gateway.state.bells import Bells
from gateway.state.run_mail import MailBounds, ProgramMail
from gateway.state.run_store import RunBounds, RunStore
from gateway.state.run_values import ProgramValues
from gateway.tenancy.build import Tenancy


def build_doors(settings: Settings, url: str, finder: ProgramFinder) -> Doors:
    """What programs reach of each other; connects when first used.

    Args:
        settings: How to serve.
        url: Of a Redis; empty leaves them without values and messages.
        finder: Which programs there are.
    """
    if not url:
        return Doors(finder=finder)
    bells = Bells(url)
    values = ProgramValues(url, max_keys=settings.max_program_values, max_bytes=settings.max_program_values_bytes)
    mail = ProgramMail(url, bells, MailBounds(bytes=settings.max_program_mail_bytes))
    return Doors(finder=finder, bells=bells, values=values, mail=mail)


def build_runs(
    settings: Settings,
    url: str,
    programs: ProgramStarter,
    runtime: Runtime,
    lifecycle: Lifecycle,
    tenants: Tenancy | None,
) -> DetachedRuns | None:
    """What works on detached runs; None without a Redis.

    Args:
        settings: How to serve.
        url: Of a Redis; empty keeps no runs.
        programs: Starts those that go on after a crash; its bells ring for their input. Closed after the runs.
        runtime: Where they run.
        lifecycle: Counts them.
        tenants: Who may use how much; None without tenants.
    """
    bells = programs.doors.bells
    if bells is None:
        return None
    bounds = RunBounds(
        runs=settings.max_runs,
        bytes=settings.max_runs_bytes,
        event_bytes=settings.max_run_event_bytes,
        journal_bytes=settings.max_run_journal_bytes,
        ttl_s=settings.run_ttl_s,
        live_s=settings.program_wall_s,
    )
    told = partial(to_reply, retry_after_s=settings.retry_after_s, max_message_chars=settings.max_message_chars)
    store = RunStore(url, bounds)
    return DetachedRuns(store, bells, lifecycle, told, Reviver(programs, runtime, store, bells, tenants))
