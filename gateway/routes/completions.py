"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.request import DrafterSpec, EngineInfo
from engine.text.model import TextModel
from extensions.output import GenerateOptions
from gateway.errors import BadRequest, UnsupportedParameter
from gateway.generations import Generations, Work
from gateway.openapi import takes
from gateway.prefixes.using import check_prefix_fields, prefix_of
from gateway.programs.running import asked_program
from gateway.routes.answering import collect, json_response, stream
from gateway.routes.owning import payer_of
from gateway.routes.running import answer_by_program, model_name
from gateway.schemas.completions import CompletionRequest
from gateway.services import ServicesDep, read_body
from gateway.settings import Settings
from gateway.translate.completions import CompletionChunks, EncodedPrompt, completion_answer
from gateway.translate.drafting import drafter_of
from gateway.translate.head import Head
from gateway.translate.infill import Infill
from gateway.translate.programs import text_for_program
from gateway.translate.prompts import check_ids, encode_text, truncate_prompt
from gateway.translate.sampling import check_limits, to_options

router = APIRouter()


@router.post("/v1/completions", openapi_extra=takes(CompletionRequest, streams=True))
async def create_completion(request: Request, services: ServicesDep) -> Response:
    """Continues one or several texts."""
    body = await read_body(request, CompletionRequest)
    model = model_name(services, body.model)
    _check_limits(body, services.settings)
    program = asked_program(body.model, body.extension)
    services.retainer.check(body, is_program=program is not None)
    if program is not None:
        given = text_for_program(body, model)
        return await answer_by_program(request, services, body, program, given, "text")
    runtime, info = services.runtime, await services.engine_info()
    payer, drafter = (
        payer_of(request, services, body.cache_salt),
        await drafter_of(body, runtime.text, info, services.settings),
    )
    told: dict[str, Any] = {}
    async with prefix_of(body, services.prefixes, info, payer) as used:
        infill = _infill(body, runtime.text)
        if used is not None:
            prompts = [await _behind(runtime.text, used.start.token_ids, body, info)]
        elif infill is None:
            prompts = [await _encode(runtime.text, number, body, info) for number in range(len(body.prompt))]
        else:
            prompts = await _arrange(runtime.text, infill, body, info)
            body = body.model_copy(update={"stop_token_ids": [*body.stop_token_ids, *infill.end_ids]})
        parts = [Work(one.ids, _options(body, info, runtime.text, one, drafter), one.param) for one in prompts]
        if used is not None:
            parts = [used.work(parts[0])]
        work = await Generations.start(
            runtime,
            [services.retainer.plan(body, info, payer, part, told) for part in parts],
            payer=payer,
            model=model,
            metrics=services.metrics,
        )
    kv = None if used is None else used.kv
    head = Head.new("cmpl", model=model, fingerprint=info.fingerprint, kv=kv, told=told)
    if body.stream:
        return stream(services, work, CompletionChunks(head, body, prompts))
    choices = await collect(request, work)
    return json_response(completion_answer(head, body, choices, work.usage, prompts), usage=work.usage)


def _check_limits(body: CompletionRequest, settings: Settings) -> None:
    check_limits(body, settings)
    check_prefix_fields(body)
    if body.prefix is not None and len(body.prompt) != 1:
        raise BadRequest("Behind a 'prefix' goes one prompt.", "prompt")
    if len(body.prompt) > settings.max_prompts:
        raise BadRequest(f"'prompt' has more than {settings.max_prompts} prompts.", "prompt")
    if len(body.prompt) * body.num_candidates > settings.max_prompts:
        raise BadRequest(f"'n' times the number of prompts is more than {settings.max_prompts}.", "n")


async def _encode(text: TextModel, number: int, body: CompletionRequest, info: EngineInfo) -> EncodedPrompt:
    prompt, param = body.prompt[number], _name_of(number, body)
    limit_tokens = info.limit_tokens
    if isinstance(prompt, str):
        ids = await encode_text(text, prompt, limit_tokens, param=param, add_special=body.add_special_tokens)
        shown = prompt
    else:
        ids = prompt
        shown = ""
    if not ids:
        raise BadRequest(f"Invalid '{param}': it must not be empty.", param)
    check_ids(ids, info.vocab_size, param)
    ids = truncate_prompt(ids, body.truncate_prompt_tokens, limit_tokens, body.max_tokens, body.truncation_side)
    if body.echo and (not isinstance(prompt, str) or len(ids) < len(prompt)):
        shown = text.tokenizer.decode(ids, skip_special=body.skip_special_tokens)
    return EncodedPrompt(shown, ids, param)


def _name_of(number: int, body: CompletionRequest) -> str:
    """What the client calls one of its prompts."""
    return "prompt" if len(body.prompt) == 1 else f"prompt[{number}]"


async def _behind(text: TextModel, start: Sequence[int], body: CompletionRequest, info: EngineInfo) -> EncodedPrompt:
    """The prompt behind a prefix."""
    (prompt,) = body.prompt
    if isinstance(prompt, str):
        prompt = await encode_text(text, prompt, info.limit_tokens, param="prompt", add_special=False)
    check_ids(prompt, info.vocab_size, "prompt")
    return EncodedPrompt("", [*start, *prompt], "prompt")


def _infill(body: CompletionRequest, text: TextModel) -> Infill | None:
    if not body.suffix:
        return None
    infill = Infill.find(text.tokenizer)
    if infill is None:
        raise UnsupportedParameter("suffix", "This model has no tokens for filling in; 'suffix' is not supported.")
    return infill


async def _arrange(text: TextModel, infill: Infill, body: CompletionRequest, info: EngineInfo) -> list[EncodedPrompt]:
    """Every prompt with the suffix; both are limited, so that neither is tokenised in vain."""
    limit_tokens = info.limit_tokens
    opening = text.tokenizer.encode("", add_special=body.add_special_tokens)
    after = await encode_text(text, body.suffix, limit_tokens, param="suffix", add_special=False)
    prompts = []
    for number, before in enumerate(body.prompt):
        param = _name_of(number, body)
        if isinstance(before, str):
            before = await encode_text(text, before, limit_tokens, param=param, add_special=False)
        check_ids(before, info.vocab_size, param)
        prompts.append(EncodedPrompt("", infill.arrange(opening, before, after), param))
    return prompts


def _options(
    body: CompletionRequest, info: EngineInfo, text: TextModel, prompt: EncodedPrompt, drafter: DrafterSpec | None
) -> GenerateOptions:
    num_logprobs = body.num_logprobs
    if body.num_candidates > body.n and num_logprobs is None:
        num_logprobs = 0
    return to_options(
        body,
        info,
        text.tokenizer,
        num_prompt_tokens=len(prompt.ids),
        prompt_param=prompt.param,
        max_tokens=body.max_tokens,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=body.num_logprobs if body.echo else None,
        n=body.num_candidates,
        drafter=drafter,
    )
