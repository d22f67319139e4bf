"""What a caller may ask of sampling, validated once at the edge."""

from __future__ import annotations

import math

import msgspec

from engine.errors import InvalidRequest

MAX_LOGPROBS = 64
"""Most alternatives per position that the engine reports."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens of one sequence are chosen. All ids are token ids of the served model.

    Order of application: repetition, presence and frequency penalties; `logit_bias`; forbidden tokens (`bad_words`,
    stop ids before `min_tokens`, everything outside `allowed_token_ids`); then greedy choice if `temperature` is 0,
    else division by temperature, `top_k`, `top_p`, `min_p`, and a draw. Reported log-probabilities are those of the
    model, before any of this.

    Attributes:
        max_tokens: Output tokens at most; 0 computes the prompt and draws nothing, for its log-probabilities.
        temperature: 0 is greedy; below 0.01 it counts as greedy too.
        top_p: Smallest set of likeliest tokens whose mass reaches this, 0..1; 0 keeps the likeliest alone.
        top_k: Likeliest tokens kept; 0 means all.
        min_p: Tokens less likely than this times the likeliest are dropped, 0..1.
        repetition_penalty: Over prompt and output tokens (arXiv 1909.05858); 1 is none.
        presence_penalty: Subtracted once from tokens already in the output, -2..2.
        frequency_penalty: Subtracted per occurrence in the output, -2..2.
        logit_bias: Added to the logits of these ids, clamped to -100..100 by the edge.
        min_tokens: Stop ids cannot be drawn before this many output tokens.
        seed: 64-bit seed; None lets the engine draw one.
        stop_token_ids: Ends the sequence, in addition to the model's end ids.
        ignore_eos: The model's own end ids do not end the sequence.
        bad_words: Token sequences that must not appear in the output.
        allowed_token_ids: Only these may be drawn; None means all.
        logprobs: None for none; otherwise the chosen token's and this many alternatives' log-probabilities.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature < 0.01

    @property
    def remembers_output(self) -> bool:
        """True if what was drawn counts for later draws."""
        is_penalized = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return is_penalized or any(len(word) > 1 for word in self.bad_words)

    @property
    def takes_forced_tokens(self) -> bool:
        """True if a token that can only come next needs no draw: nothing is reported of it, nothing depends on it."""
        is_penalized = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        is_forbidden = bool(self.bad_words) or self.allowed_token_ids is not None
        return self.logprobs is None and not is_penalized and not is_forbidden

    def validate(self, vocab_size: int) -> None:
        """Checks every field against its range and the vocabulary.

        Raises:
            InvalidRequest: Names the first field at fault in `param`.
        """
        _in_range("max_tokens", self.max_tokens, 0, None)
        _in_range("temperature", self.temperature, 0.0, 2.0)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _in_range("top_k", self.top_k, 0, None)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, None)
        if self.repetition_penalty == 0:
            raise InvalidRequest("repetition_penalty must be greater than 0", "repetition_penalty")
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        for bias in self.logit_bias.values():
            _in_range("logit_bias", bias, -100.0, 100.0)
        _ids_in_vocab("logit_bias", tuple(self.logit_bias), vocab_size)
        _ids_in_vocab("stop_token_ids", self.stop_token_ids, vocab_size)
        for word in self.bad_words:
            if not word:
                raise InvalidRequest("bad_words must not contain an empty word", "bad_words")
            _ids_in_vocab("bad_words", word, vocab_size)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise InvalidRequest("allowed_token_ids must not be empty", "allowed_token_ids")
            _ids_in_vocab("allowed_token_ids", self.allowed_token_ids, vocab_size)


def _in_range(name: str, value: float, low: float | None, high: float | None) -> None:
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequest(f"{name} must be {bounds}, got {value}", name)


def _ids_in_vocab(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"{name}: token id {token_id} is outside the vocabulary of {vocab_size}", name)
