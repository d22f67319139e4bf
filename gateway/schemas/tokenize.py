"""Bodies of POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from gateway.schemas.base import TokenId, WireModel
from gateway.schemas.chat import TemplateFields


class TokenizeTextRequest(WireModel):
    """Text to tokenise as it stands."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(TemplateFields):
    """A conversation to tokenise through the chat template."""

    model: str | None = None
    return_token_strs: bool = False


class DetokenizeRequest(WireModel):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[TokenId]
