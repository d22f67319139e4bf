"""How byte-level vocabularies cut text into words before merging, by the names GGUF files use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers

from engine.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD_LETTERS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)


class PreTokenizerRules(NamedTuple):
    """What one name stands for.

    Attributes:
        pre_tokenizer: Cuts text into words and writes bytes as characters.
        normalizer: Applied to text first, if any.
        takes_whole_words: A word that is a token is taken as it is, without merging.
    """

    pre_tokenizer: Any
    normalizer: Any = None
    takes_whole_words: bool = False


def pre_tokenizer_named(name: str) -> PreTokenizerRules:
    """Returns the rules of a GGUF `tokenizer.ggml.pre`.

    Raises:
        ModelLoadError: The name is not known.
    """
    build = _RULES.get(name)
    if build is None:
        raise ModelLoadError(f"the pre-tokenizer {name!r} is not supported (only {', '.join(sorted(_RULES))})")
    return build()


def _words(*patterns: str) -> Any:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated", invert=False) for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)
    return pre_tokenizers.Sequence([*splits, byte_level])


def _gpt2() -> PreTokenizerRules:
    return PreTokenizerRules(pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True))


def _smollm() -> PreTokenizerRules:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return PreTokenizerRules(pre_tokenizers.Sequence([digits, _gpt2().pre_tokenizer]))


def _llama3() -> PreTokenizerRules:
    return PreTokenizerRules(_words(_LLAMA3), takes_whole_words=True)


def _qwen2() -> PreTokenizerRules:
    return PreTokenizerRules(_words(_QWEN2), normalizer=normalizers.NFC())


def _tekken() -> PreTokenizerRules:
    return PreTokenizerRules(_words(_TEKKEN), takes_whole_words=True)


def _default() -> PreTokenizerRules:
    return PreTokenizerRules(_words(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))


_RULES: dict[str, Callable[[], PreTokenizerRules]] = {
    "default": _default,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "llama-bpe": _llama3,
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "tekken": _tekken,
}
