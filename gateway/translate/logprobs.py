"""Tokens with their log-probabilities to the two forms of the wire.

Chat answers list objects with the token's true bytes. Text completions have parallel lists and the place of each token
in the text; a token that is no whole character is spelled `bytes:\\xe2\\x82`, so that no two of them look alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from extensions.output import TokenAlternative, TokenText

MIN_LOGPROB = -9999.0
"""JSON has no infinity; nothing reported is smaller."""

AnyToken = TokenText | TokenAlternative


def chat_logprobs(tokens: Iterable[TokenText], *, as_ids: bool) -> dict[str, Any]:
    """The `logprobs` object of a chat choice.

    Args:
        tokens: With log-probabilities.
        as_ids: Spell tokens `token_id:N`.
    """
    return {"content": [_chat_entry(token, as_ids) for token in tokens], "refusal": None}


def _chat_entry(token: TokenText, as_ids: bool) -> dict[str, Any]:
    return {
        **_chat_token(token, as_ids),
        "top_logprobs": [_chat_token(alternative, as_ids) for alternative in token.top],
    }


def _chat_token(token: AnyToken, as_ids: bool) -> dict[str, Any]:
    return {
        "token": f"token_id:{token.token_id}" if as_ids else token.text,
        "logprob": _finite(token.logprob),
        "bytes": list(token.data),
    }


class CompletionLogprobs:
    """The `logprobs` objects of one text choice, part by part; offsets run on from one to the next.

    Args:
        as_ids: Spell tokens `token_id:N`.
    """

    def __init__(self, *, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._num_chars = 0

    def body(self, tokens: Iterable[TokenText]) -> dict[str, Any]:
        """The object for the next tokens of the text."""
        listed = list(tokens)
        return {
            "tokens": [self._label(token) for token in listed],
            "token_logprobs": [None if token.logprob is None else _finite(token.logprob) for token in listed],
            "top_logprobs": [self._top(token) for token in listed],
            "text_offset": [self._advance(token.data) for token in listed],
        }

    def _advance(self, data: bytes) -> int:
        """Index of the character that holds the token's first byte: continuation bytes begin none."""
        begins_inside = bool(data) and _is_continuation(data[0])
        offset = max(self._num_chars - begins_inside, 0)
        self._num_chars += sum(not _is_continuation(byte) for byte in data)
        return offset

    def _top(self, token: TokenText) -> dict[str, float] | None:
        if token.logprob is None:
            return None
        top = {self._label(alternative): _finite(alternative.logprob) for alternative in token.top}
        return {**top, self._label(token): _finite(token.logprob)}

    def _label(self, token: AnyToken) -> str:
        if self._as_ids:
            return f"token_id:{token.token_id}"
        if "\ufffd" in token.text and token.data != token.text.encode():
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
        return token.text


def prompt_logprobs_body(tokens: Iterable[TokenText]) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` list, in vLLM's shape: for each prompt token a map from id to what is known of it."""
    return [_prompt_entry(token) for token in tokens]


def _prompt_entry(token: TokenText) -> dict[str, Any] | None:
    if token.logprob is None:
        return None
    entry = {
        str(alternative.token_id): {
            "logprob": _finite(alternative.logprob),
            "rank": rank,
            "decoded_token": alternative.text,
        }
        for rank, alternative in enumerate(token.top, start=1)
    }
    own = {"logprob": _finite(token.logprob), "rank": None, "decoded_token": token.text}
    return {str(token.token_id): own, **entry}


def _finite(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80
