"""Tokens as callers see them: text, true bytes, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from engine.request import TokenLogprob
from engine.text.detokenizer import IncrementalDetokenizer
from engine.text.tokenizer import Tokenizer
from extensions.output import TokenAlternative, TokenText


def describe(tokenizer: Tokenizer, token_id: int, data: bytes, logprob: TokenLogprob | None) -> TokenText:
    """Returns one token with what the engine reported of its place.

    Args:
        tokenizer: Of the served model.
        token_id: The token.
        data: The bytes it adds to its text.
        logprob: The engine's report, if one was asked for.
    """
    text = data.decode("utf-8", "replace")
    if logprob is None:
        return TokenText(token_id=token_id, text=text, data=data)
    top = [
        _alternative(tokenizer, other, value)
        for other, value in zip(logprob.top_ids, logprob.top_logprobs, strict=True)
    ]
    return TokenText(token_id=token_id, text=text, data=data, logprob=logprob.logprob, top=tuple(top))


def _alternative(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenAlternative:
    spelling = tokenizer.spelling(token_id)
    return TokenAlternative(token_id=token_id, text=spelling.text, data=spelling.data, logprob=logprob)


def describe_prompt(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprob], *, skip_special: bool
) -> tuple[TokenText, ...]:
    """Returns every prompt token; the first has no log-probability, and a hidden special token has no text.

    Args:
        tokenizer: Of the served model.
        prompt_ids: All ids of the prompt.
        logprobs: One report for each id after the first.
        skip_special: Leave special tokens out of the text.
    """
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
    decoded = [*detokenizer.push(prompt_ids).tokens, *detokenizer.waiting]
    reports = [None, *logprobs]
    return tuple(
        describe(tokenizer, token.token_id, token.data, report) for token, report in zip(decoded, reports, strict=True)
    )
