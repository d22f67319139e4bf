"""Chat and text completions that a program answers."""

from __future__ import annotations

from fastapi import Request, Response

from extensions.programs.request import ProgramRequest
from gateway.errors import RUN_HEADER
from gateway.programs.running import MODEL_PREFIX
from gateway.routes.answering import collect, json_response, stream
from gateway.routes.owning import payer_of
from gateway.runs.starting import start_program
from gateway.schemas.extensions import ExtensionFields
from gateway.schemas.sampling import SamplingFields
from gateway.services import Services
from gateway.translate.head import Head
from gateway.translate.programs import Kind, ProgramChunks, program_answer


async def answer_by_program(
    request: Request,
    services: Services,
    body: SamplingFields,
    fields: ExtensionFields,
    given: ProgramRequest,
    kind: Kind,
) -> Response:
    """Runs the program and answers with its text, whole or as a stream.

    Args:
        request: Of the client.
        services: Of the app.
        body: What it asked.
        fields: Its program.
        given: What the script is to see.
        kind: Of chat or of text completions.
    """
    info = await services.engine_info()
    payer = payer_of(request, services, body.cache_salt)
    work = await start_program(services, body, fields, given, payer)
    headers = {RUN_HEADER: work.run.request.id} if fields.detached else {}
    prefix = "chatcmpl" if kind == "chat" else "cmpl"
    head = Head.new(prefix, model=given.model, fingerprint=info.fingerprint)
    if body.stream:
        response = stream(services, work, ProgramChunks(head, kind, body.stream_options))
    else:
        await collect(request, work)
        response = json_response(program_answer(head, kind, work), usage=work.usage)
    response.headers.update(headers)
    return response


def model_name(services: Services, model: str | None) -> str:
    """The name to answer with: of a served model, or of a program that is asked for like one.

    Raises:
        ModelNotFound: It is neither.
    """
    if model is not None and model.startswith(MODEL_PREFIX):
        return model
    return services.models.resolve(model)
