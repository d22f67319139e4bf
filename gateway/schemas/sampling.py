"""Fields that chat and text completions share."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import INT64_MAX, Count, FiniteFloat, Int64, StringList, TokenId, WireModel
from gateway.schemas.drafting import DrafterChoice, Prediction
from gateway.schemas.extensions import ExtensionFields
from gateway.schemas.prefixes import PrefixUse
from gateway.schemas.retention import RetentionWish
from gateway.schemas.structured import StructuredFields

MAX_TOP_LOGPROBS = 20
"""Most alternatives a position that a client may ask for."""

MAX_CHOICES = 128
"""Most continuations of one prompt."""

MAX_BIASED_IDS = 65_536
"""Most entries of `logit_bias`, whatever the operator allows."""

MAX_STOP_IDS = 1024
"""Most stop tokens of one request."""

MAX_ALLOWED_IDS = 2**20
"""Most allowed tokens of one request: more than any vocabulary has."""

MAX_BAD_WORDS = 1024
"""Most forbidden words of one request."""

MAX_WORD_CHARS = 1024
"""Longest forbidden word."""

MAX_BAD_WORDS_CHARS = 16_384
"""Longest that all forbidden words may be together: they are tokenised while other requests wait."""

_DECIMAL = re.compile("0|[1-9][0-9]{0,9}")
"""The one spelling of a token id, so that no two keys mean the same."""

Penalty = Annotated[FiniteFloat, Field(ge=-2, le=2)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_WORD_CHARS)]
Fraction = Annotated[FiniteFloat, Field(ge=0, le=1)]


class StreamOptions(WireModel):
    """How a stream reports usage.

    Attributes:
        include_usage: Send one last chunk with the usage.
        continuous_usage_stats: With `include_usage`: send the usage so far with every chunk.
        include_obfuscation: Accepted; chunks are never padded.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


def _bias_by_id(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASED_IDS:
        raise PydanticCustomError("too_long", "it must not have more than {most} entries", {"most": MAX_BIASED_IDS})
    for key in value:
        if not _DECIMAL.fullmatch(key):
            raise PydanticCustomError("token_id", "keys must be token ids, got {key}", {"key": ascii(key)[:40]})
    return {int(key): item for key, item in value.items()}


LogitBias = Annotated[dict[int, FiniteFloat], BeforeValidator(_bias_by_id, json_schema_input_type=dict[str, float])]


class SamplingFields(StructuredFields):
    """What to generate and how, apart from the prompt. Names and ranges are OpenAI's, then vLLM's.

    Attributes:
        model: Name of a served model; the only one if omitted.
        n: Independent continuations.
        stop: Strings that end the text.
        top_k: Likeliest tokens kept; 0 and -1 keep all.
        logit_bias: By token id; values beyond -100..100 are clamped.
        prompt_logprobs: Alternatives a prompt token; -1 is the most there can be.
        truncate_prompt_tokens: Keep this many prompt tokens; -1 keeps what fits.
        truncation_side: Where others are left out.
        cache_salt: Prefix pages are shared only with requests of the same salt.
        extension: A program that answers the request.
        prefix: A history that is kept, which the prompt goes behind.
        retention: For how long the KV is to be kept when the answer is there.
        drafter: Guesses tokens ahead that are verified together; the answer is the same.
        prediction: A text that the answer is expected to resemble, for the drafter.
        request_id: Accepted as a label; never the key of anything.
        return_token_ids: Add token ids to the answer.
        return_tokens_as_token_ids: Spell tokens in logprobs as `token_id:N`.
    """

    unsupported: ClassVar = {
        "logprob_token_ids": ([],),
        "lora_path": (),
        "logits_processors": ([],),
        "use_beam_search": (False,),
    }

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Int64 | None = None
    stop: StringList = Field(default_factory=list)
    temperature: Annotated[FiniteFloat, Field(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[FiniteFloat, Field(gt=0)] | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    min_tokens: Count = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] = Field(default_factory=list)
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] = Field(default_factory=list)
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_IDS)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: Int64 = 0
    request_id: str | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    user: str | None = None
    extension: ExtensionFields | None = None
    prefix: PrefixUse | None = None
    retention: RetentionWish | None = None
    drafter: DrafterChoice | None = None
    prediction: Prediction | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None

    @field_validator("bad_words")
    @classmethod
    def _check_length(cls, words: list[str]) -> list[str]:
        if sum(map(len, words)) > MAX_BAD_WORDS_CHARS:
            message = "all words together must not have more than {most} characters"
            raise PydanticCustomError("too_long", message, {"most": MAX_BAD_WORDS_CHARS})
        return words
