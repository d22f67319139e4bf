"""Wire fields to what a generation is told."""

from __future__ import annotations

from typing import TypeVar

from engine.errors import ContextTooLong
from engine.programs.binding import bind_sampler
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.request import DrafterSpec, EngineInfo, ProgramSpec
from engine.sampling.params import SamplingParams
from engine.text.tokenizer import Tokenizer
from extensions.output import GenerateOptions
from gateway.errors import BadRequest
from gateway.schemas.extensions import ExtensionFields
from gateway.schemas.sampling import MAX_TOP_LOGPROBS, SamplingFields
from gateway.settings import Settings
from gateway.translate.structured import constraint_of

T = TypeVar("T")

MAX_BIAS = 100.0


def check_limits(fields: SamplingFields, settings: Settings) -> None:
    """Refuses what the operator's limits forbid, and fields that contradict each other.

    Raises:
        BadRequest: `param` names the field.
    """
    if fields.stream_options is not None and not fields.stream and not settings.lenient_stream_options:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if len(fields.stop) > settings.max_stop_strings:
        raise BadRequest(f"'stop' has more than {settings.max_stop_strings} strings.", "stop")
    if "" in fields.stop:
        raise BadRequest("'stop' must not hold an empty string.", "stop")
    if len(fields.logit_bias) > settings.max_logit_bias:
        raise BadRequest(f"'logit_bias' has more than {settings.max_logit_bias} entries.", "logit_bias")
    if fields.prompt_logprobs is not None and fields.stream:
        raise BadRequest("'prompt_logprobs' cannot be used with 'stream'.", "prompt_logprobs")


def to_options(
    fields: SamplingFields,
    info: EngineInfo,
    tokenizer: Tokenizer,
    *,
    num_prompt_tokens: int,
    prompt_param: str,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None = None,
    n: int | None = None,
    drafter: DrafterSpec | None = None,
) -> GenerateOptions:
    """Builds the options of one prompt. What the client leaves open is the model's recommendation, else neutral.

    Args:
        fields: The request.
        info: The engine, for its limits and the model's sampling defaults.
        tokenizer: Turns `bad_words` into tokens.
        num_prompt_tokens: Length of the prompt.
        prompt_param: The wire's name for where the prompt came from.
        max_tokens: Output tokens; None takes all that fit.
        num_logprobs: Alternatives a token; None for no log-probabilities.
        num_prompt_logprobs: The same for prompt tokens, if more are needed than `prompt_logprobs` asks for.
        n: Continuations, if not the request's own `n`.
        drafter: From `gateway.translate.drafting.drafter_of`.

    Raises:
        ContextTooLong: The prompt alone leaves no room.
        InvalidRequest: Values contradict each other or the vocabulary.
        BadRequest: Two fields ask for a form of the text.
    """
    if max_tokens is None:
        max_tokens = _tokens_left(info, num_prompt_tokens, prompt_param)
    defaults = info.defaults
    top_k = _first(fields.top_k, defaults.top_k, 0)
    sampling = SamplingParams(
        max_tokens=max_tokens,
        temperature=_first(fields.temperature, defaults.temperature, 1.0),
        top_p=_first(fields.top_p, defaults.top_p, 1.0),
        top_k=max(top_k, 0),
        min_p=_first(fields.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(fields.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias={key: max(-MAX_BIAS, min(MAX_BIAS, value)) for key, value in fields.logit_bias.items()},
        min_tokens=fields.min_tokens,
        seed=fields.seed,
        stop_token_ids=tuple(fields.stop_token_ids),
        ignore_eos=fields.ignore_eos,
        bad_words=_bad_words(fields.bad_words, tokenizer),
        allowed_token_ids=None if fields.allowed_token_ids is None else tuple(fields.allowed_token_ids),
        logprobs=num_logprobs,
    )
    sampling.validate(info.vocab_size)
    return GenerateOptions(
        sampling=sampling,
        n=fields.n if n is None else n,
        stop=tuple(fields.stop),
        include_stop_str=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        report_tokens=num_logprobs is not None,
        prompt_logprobs=_prompt_logprobs(fields.prompt_logprobs, num_prompt_logprobs),
        priority=fields.priority,
        constraint=constraint_of(fields),
        program=_program_of(fields.extension, info.vocab_size),
        adapter=info.adapter_of(fields.model),
        drafter=drafter,
    )


def _program_of(extension: ExtensionFields | None, vocab_size: int) -> ProgramSpec | None:
    """The device program that draws the tokens, checked with its parameters."""
    if extension is None or extension.sampler is None:
        return None
    try:
        bind_sampler(extension.sampler, extension.args, vocab_size)
    except ProgramMisused as error:
        raise BadRequest(f"{error}.", f"extension.args.{error.name}", "invalid_argument") from None
    except ProgramInvalid as error:
        message = f"The device program is not valid: {error}."
        raise BadRequest(message, "extension.sampler", "program_invalid") from None
    return ProgramSpec(source=extension.sampler, parameters=extension.args, param="extension.sampler")


def _tokens_left(info: EngineInfo, num_prompt_tokens: int, prompt_param: str) -> int:
    left = info.limit_tokens - num_prompt_tokens
    if left < 1:
        error = ContextTooLong(info.limit_tokens, num_prompt_tokens, None)
        error.param = prompt_param
        raise error
    return left


def _first(asked: T | None, recommended: T | None, neutral: T) -> T:
    if asked is not None:
        return asked
    return neutral if recommended is None else recommended


def _prompt_logprobs(asked: int | None, needed: int | None) -> int | None:
    if asked is None:
        return needed
    return max(MAX_TOP_LOGPROBS if asked == -1 else min(asked, MAX_TOP_LOGPROBS), needed or 0)


def _bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is tokenised at the start of a text and after a space."""
    forms = [form for word in words for form in (word, " " + word.lstrip())]
    encoded = [tuple(tokenizer.encode(form, add_special=False)) for form in forms]
    return tuple(dict.fromkeys(ids for ids in encoded if ids))
