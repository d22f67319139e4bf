"""Guessing tokens ahead, on the wire: OpenAI's `prediction`, and `drafter`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from engine.drafting.limits import MAX_DRAFT_TOKENS, MAX_MATCH_TOKENS
from gateway.schemas.base import StrictModel, WireModel

MAX_PREDICTION_PARTS = 1024
"""Most parts of one prediction."""


class DrafterFields(StrictModel):
    """How tokens are guessed.

    Attributes:
        type: `prompt_lookup` looks the last tokens up where they stood before; `none` guesses nothing.
        max_tokens: Most tokens guessed at a time.
        min_match: Fewest last tokens that must have stood there.
        max_match: Most that are looked for.
    """

    type: Literal["prompt_lookup", "none"]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] | None = None
    min_match: Annotated[int, Field(ge=1, le=MAX_MATCH_TOKENS)] | None = None
    max_match: Annotated[int, Field(ge=1, le=MAX_MATCH_TOKENS)] | None = None


DrafterChoice = Annotated[
    DrafterFields,
    BeforeValidator(
        lambda value: {"type": value} if isinstance(value, str) else value,
        json_schema_input_type=DrafterFields | Literal["prompt_lookup", "none"],
    ),
]
"""A drafter, or its name alone."""


class PredictedPart(WireModel):
    """A part of a predicted text."""

    type: Literal["text"]
    text: str


class Prediction(WireModel):
    """A text that the answer is expected to resemble."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[PredictedPart], Field(max_length=MAX_PREDICTION_PARTS)]

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
