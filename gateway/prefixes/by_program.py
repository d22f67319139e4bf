"""Prefixes of programs: a program is run as for a request, and the context that it leaves is what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from extensions.errors import ArgumentsInvalid, ProgramInvalid
from extensions.programs.request import ProgramRequest
from gateway.errors import BadRequest, NotFound
from gateway.prefixes.requested import RequestedPrefix
from gateway.prefixes.service import Making
from gateway.programs.running import new_run_id
from gateway.schemas.prefixes import PrefixProgram, PrefixRequest
from gateway.sse import close_shielded
from gateway.state.prefixes import PrefixRecord
from gateway.tenancy.payer import Payer

if TYPE_CHECKING:
    from gateway.services import Services

PROGRAM = "program"
NO_PREFIX_CODE = "prefix_not_made"


async def make_by_program(
    services: Services, body: PrefixRequest, program: PrefixProgram, payer: Payer, prefix_id: str = ""
) -> PrefixRecord:
    """Runs the program of a request, with its tenant's limits and charges, and keeps the context that it leaves.

    Args:
        services: Of the app.
        body: The request.
        program: Of the request.
        payer: Who pays, and whose prefix it is.
        prefix_id: The id that the prefix must get; a new one if it is empty.

    Raises:
        BadRequest: The program has ended well and left no context.
        PermissionDenied: The key may not run programs.
        NotFound: There is no such program.
        ArgumentsInvalid: Arguments or limits are not what they must be; `param` names the field.
        ProgramError: The program cannot run, or failed.
        StoreUnavailable: There is no Redis, or it did not answer.
        EngineStopped: No engine is there.
    """
    model = services.models.resolve(body.model)
    await services.engine_info()
    making = Making(model=model, ttl_mode=body.ttl_mode, metadata=body.metadata)
    requested = RequestedPrefix(name=body.name, given=_given(body), making=making, prefix_id=prefix_id)
    try:
        work = await services.programs.begin(
            program.fields,
            payer.account,
            ProgramRequest(model=model, exports_as=body.name),
            salt=payer.salt,
            payer=payer,
            run_id=new_run_id(),
            inbox=None,
            requested=requested,
        )
    except ProgramInvalid as error:
        error.param = f"{PROGRAM}.source"
        raise
    except (NotFound, ArgumentsInvalid) as error:
        error.param = f"{PROGRAM}.{(error.param or '').removeprefix('extension.')}".rstrip(".")
        raise
    try:
        await work.collect()
    finally:
        await close_shielded(work)
    if requested.record is None:
        name = work.run.program.name or "The program"
        message = f"{name} has left no context to keep: it must return one, or export one as '{body.name}'."
        raise BadRequest(message, PROGRAM, NO_PREFIX_CODE)
    return requested.record


def _given(body: PrefixRequest) -> dict[str, Any]:
    """What the client has said itself of how it is to be kept."""
    said: dict[str, Any] = {"ttl_s": body.ttl, "visibility": body.visibility, "allow": tuple(body.allow)}
    wire = {"ttl_s": "ttl", "visibility": "visibility", "allow": "allow"}
    return {name: value for name, value in said.items() if value is not None and wire[name] in body.model_fields_set}
