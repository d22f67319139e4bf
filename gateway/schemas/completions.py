"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.sampling import MAX_TOP_LOGPROBS, SamplingFields

DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]
"""Text, or token ids."""


def _as_prompts(value: object) -> list[Prompt]:
    """Turns the four forms of `prompt` into a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("prompt_type", "it must be a string, token ids, or a list of either")
    if not value:
        raise PydanticCustomError("empty_prompt", "it must not be empty")
    if _are_ids(value):
        return [value]
    if all(isinstance(item, str) for item in value):
        return list(value)
    for position, item in enumerate(value):
        if not isinstance(item, list) or not _are_ids(item):
            message = "it must be of the same kind as its neighbours: strings, token ids, or lists of token ids"
            raise PydanticCustomError("prompt_type", message, {"at": f"[{position}]"})
        if not item:
            raise PydanticCustomError("empty_prompt", "it must not be empty", {"at": f"[{position}]"})
    return list(value)


def _are_ids(items: list[object]) -> bool:
    return all(type(item) is int for item in items)


class CompletionRequest(SamplingFields):
    """One text completion, of one or several prompts.

    Attributes:
        max_tokens: Output tokens; 0 generates nothing, which makes sense with `echo`.
        logprobs: Alternatives a token.
        echo: Begin the text with the prompt.
        best_of: Generate this many and return the `n` with the highest mean log-probability.
    """

    unsupported: ClassVar = {**SamplingFields.unsupported, "suffix": ("",)}

    prompt: Annotated[list[Prompt], BeforeValidator(_as_prompts)]
    max_tokens: Annotated[int, Field(ge=0)] = DEFAULT_MAX_TOKENS
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None

    @model_validator(mode="after")
    def _check_best_of(self) -> Self:
        if self.best_of is None or self.best_of == self.n:
            return self
        if self.best_of < self.n:
            raise PydanticCustomError("exclusive", "it must be at least 'n'", {"at": "best_of"})
        if self.stream:
            raise PydanticCustomError("exclusive", "it cannot be larger than 'n' in a stream", {"at": "best_of"})
        return self

    @property
    def num_candidates(self) -> int:
        """Continuations generated for each prompt."""
        return self.n if self.best_of is None else self.best_of
