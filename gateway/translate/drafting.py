"""What a request says of guessing ahead, to what the engine is told."""

from __future__ import annotations

from engine.drafting.limits import check_drafter
from engine.errors import InvalidRequest
from engine.request import DrafterSpec, EngineInfo
from engine.text.model import TextModel
from gateway.errors import BadRequest, PromptTooLong
from gateway.schemas.drafting import DrafterFields
from gateway.schemas.sampling import SamplingFields
from gateway.settings import Settings
from gateway.translate.prompts import encode_text


async def drafter_of(
    fields: SamplingFields, text: TextModel, info: EngineInfo, settings: Settings
) -> DrafterSpec | None:
    """The drafter of a request: its own, else the operator's; a prediction without either is looked up too.

    Raises:
        BadRequest: Its numbers contradict each other, the prediction cannot be an answer, or nothing may use it.
    """
    asked, prediction = fields.drafter, fields.prediction
    if asked is None:
        asked = DrafterFields(type="none" if prediction is None else "prompt_lookup")
        asked = DrafterFields(type=settings.drafter) if asked.type == "none" else asked
    if asked.type == "none":
        if prediction is not None:
            raise BadRequest("'drafter' is 'none', so nothing would use the prediction.", "prediction")
        return None
    reference = [] if prediction is None else await _encode(text, prediction.text, info.limit_tokens)
    plain = DrafterSpec()
    min_match = asked.min_match or min(plain.min_match, asked.max_match or plain.min_match)
    spec = DrafterSpec(
        max_tokens=asked.max_tokens or plain.max_tokens,
        min_match=min_match,
        max_match=asked.max_match or max(plain.max_match, min_match),
        reference_ids=reference,
    )
    try:
        check_drafter(spec, info.vocab_size)
    except InvalidRequest as error:
        raise BadRequest(f"Invalid 'drafter': {error.message}.", error.param) from None
    return spec


async def _encode(text: TextModel, predicted: str, limit_tokens: int) -> list[int]:
    try:
        return await encode_text(text, predicted, limit_tokens, param="prediction", add_special=False)
    except PromptTooLong:
        message = f"'prediction' is longer than any answer can be, which is {limit_tokens} tokens."
        raise BadRequest(message, "prediction") from None
