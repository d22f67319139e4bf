"""Programs of ordinary requests, which may ask to go on without their client."""

from __future__ import annotations

from typing import Any

from extensions.journal.journal import Journal
from extensions.programs.request import ProgramRequest
from gateway.errors import BadRequest
from gateway.programs.running import new_run_id
from gateway.programs.work import ProgramWork
from gateway.schemas.base import WireModel
from gateway.schemas.extensions import ExtensionFields
from gateway.services import Services
from gateway.tenancy.payer import Payer
from gateway.translate.chunks import encode_json

MAX_ARGS_BYTES = 2**20
"""Most bytes of the arguments of a run: they are kept with it."""


async def start_program(
    services: Services, body: WireModel, fields: ExtensionFields, given: ProgramRequest, payer: Payer
) -> ProgramWork:
    """Starts the program that answers a request; closing what a detached one returns does not end it.

    Args:
        services: Of the app.
        body: The request.
        fields: Its `extension`.
        given: What the script is to see of the request.
        payer: Who pays, and whose run it is.

    Raises:
        BadRequest: It is to be detached, and its arguments are too large to be kept.
        StoreUnavailable: It is to be detached, and there is no store, or it does not answer.
        NotReady: The owner has too many runs.
        Exception: What `ProgramStarter.start` raises.
    """
    owner, run_id = payer.account, new_run_id()
    inbox = sink = None
    if fields.detached:
        check_args(fields.args, "extension.args")
        await services.detached_runs.store.check()
        inbox, sink = services.detached_runs.inbox(run_id), services.detached_runs.sink(run_id)
    journal = None if sink is None else Journal(sink)
    work = await services.programs.start(
        body, fields, owner, given, salt=payer.salt, payer=payer, run_id=run_id, inbox=inbox, journal=journal
    )
    if not fields.detached:
        return work
    head = run_head(work, given.model, getattr(body, "metadata", None) or None)
    return await services.detached_runs.start(work, owner, head, attach=True, journal=sink)


def check_args(args: dict[str, Any], param: str) -> None:
    """Checks the arguments of a run.

    Raises:
        BadRequest: They are too large to be kept.
    """
    size = len(encode_json(args))
    if size > MAX_ARGS_BYTES:
        message = f"'{param}' has {size} bytes; at most {MAX_ARGS_BYTES} are kept with a run."
        raise BadRequest(message, param)


def run_head(work: ProgramWork, model: str, metadata: dict[str, str] | None) -> dict[str, Any]:
    """What is known of a run from its beginning on."""
    program = work.run.program
    return {
        "model": model,
        "program": {"name": program.name or None, "version": program.version or None, "digest": program.digest},
        "args": dict(work.run.request.args),
        "metadata": metadata,
    }
