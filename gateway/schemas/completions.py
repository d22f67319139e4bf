"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import MAX_TOKEN_ID, Count, TokenId
from gateway.schemas.sampling import MAX_TOP_LOGPROBS, SamplingFields

DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]
"""Text, or token ids."""

AnyPrompt = str | list[str] | list[TokenId] | list[list[TokenId]]
"""What clients send."""


def as_prompts(value: object) -> list[Prompt]:
    """Turns the four forms of `prompt` into a list of prompts; the first item says which form it is."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _bad_prompt("it must be a string, token ids, or a list of either")
    if not value:
        raise _bad_prompt("it must not be empty")
    kind = type(value[0])
    for position, item in enumerate(value):
        if type(item) is not kind or kind not in (str, int, list):
            reason = "it must be of the same kind as its neighbours: strings, token ids, or lists of token ids"
            raise _bad_prompt(reason, f"[{position}]")
    if kind is int:
        _check_ids(value, "")
        return [value]
    if kind is list:
        for position, ids in enumerate(value):
            _check_ids(ids, f"[{position}]")
    return list(value)


def _check_ids(ids: list[object], at: str) -> None:
    if not ids:
        raise _bad_prompt("it must not be empty", at)
    for position, item in enumerate(ids):
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            raise _bad_prompt("it must be a token id", f"{at}[{position}]")


def _bad_prompt(reason: str, at: str = "") -> PydanticCustomError:
    return PydanticCustomError("prompt", reason, {"at": at})


class CompletionRequest(SamplingFields):
    """One text completion, of one or several prompts.

    Attributes:
        max_tokens: Output tokens; 0 computes the prompt alone, to `echo` it with its log-probabilities.
        logprobs: Alternatives a token; -1 is the most there can be.
        echo: Begin the text with the prompt.
        add_special_tokens: Begin a prompt that is text with the tokenizer's opening token, if it has one.
        best_of: Generate this many and return the `n` with the highest mean log-probability.
        suffix: What follows the text; the model fills in what stands between. Empty is the same as none.
    """

    unsupported: ClassVar = {**SamplingFields.unsupported, "prompt_embeds": ([],)}

    prompt: Annotated[list[Prompt], BeforeValidator(as_prompts, json_schema_input_type=AnyPrompt)]
    max_tokens: Count = DEFAULT_MAX_TOKENS
    logprobs: Annotated[int, Field(ge=-1, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False
    add_special_tokens: bool = True
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: str = ""

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of is None or self.best_of == self.n:
            return self
        if self.best_of < self.n:
            raise PydanticCustomError("exclusive", "it must be at least 'n'", {"at": "best_of"})
        if self.stream:
            raise PydanticCustomError("exclusive", "it cannot be larger than 'n' in a stream", {"at": "best_of"})
        return self

    @model_validator(mode="after")
    def _check_suffix(self) -> Self:
        if self.suffix and self.echo:
            raise PydanticCustomError("exclusive", "it excludes 'echo'", {"at": "suffix"})
        if self.suffix and self.truncate_prompt_tokens is not None:
            raise PydanticCustomError("exclusive", "it excludes 'truncate_prompt_tokens'", {"at": "suffix"})
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives a token, or None for no log-probabilities at all."""
        return MAX_TOP_LOGPROBS if self.logprobs == -1 else self.logprobs

    @property
    def num_candidates(self) -> int:
        """Continuations generated for each prompt."""
        return self.n if self.best_of is None else self.best_of
