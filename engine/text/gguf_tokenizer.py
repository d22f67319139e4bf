"""The tokenizer of a GGUF file, rebuilt from its metadata.

Two kinds are known: `gpt2` (byte-level BPE with merges, split first by a named pre-tokenizer) and `llama`
(sentencepiece BPE with byte tokens, whose merges follow from the vocabulary and its scores).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from engine.errors import ModelLoadError
from engine.gguf_metadata import read_metadata
from engine.text.hf_tokenizer import TokenizerParts
from engine.text.pre_tokenizers import pre_tokenizer_named

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def load_gguf(path: Path) -> TokenizerParts:
    """Rebuilds the tokenizer that a GGUF file describes.

    Raises:
        ModelLoadError: The file is no GGUF, or its tokenizer is damaged or of an unknown kind.
    """
    keys = read_metadata(path, lambda key: key.startswith(_PREFIX))
    fields = {key.removeprefix(_PREFIX): value for key, value in keys.items()}
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelLoadError(f"{path}: {_PREFIX}tokens is missing")
    kind = fields.get("model")
    try:
        if kind == "gpt2":
            library = _byte_level_bpe(fields)
        elif kind == "llama":
            library = _sentencepiece_bpe(fields)
        else:
            raise ModelLoadError(f"the tokenizer kind {kind!r} is not supported (only 'gpt2' and 'llama')")
        _add_tokens(library, fields)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error.message}") from error
    except Exception as error:  # the library raises bare Exception for inconsistent vocabularies
        raise ModelLoadError(f"{path}: the tokenizer's metadata is inconsistent: {error}") from error
    bos = _token_id(fields, "bos_token_id")
    eos = _token_id(fields, "eos_token_id")
    closing_ids = (eos,) if eos is not None and fields.get("add_eos_token") is True else ()
    adds_bos = bool(fields.get("add_bos_token", _adds_bos_by_default(fields)))
    return TokenizerParts(library, bos, adds_bos, closing_ids)


def named_tokens_of(fields: dict[str, Any]) -> dict[str, str]:
    """Returns the tokens with a role by the names chat templates use, from the keys after `tokenizer.ggml.`."""
    keys = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "sep_token": "seperator_token_id",
        "pad_token": "padding_token_id",
        "cls_token": "cls_token_id",
        "mask_token": "mask_token_id",
    }
    ids = {name: _token_id(fields, key) for name, key in keys.items()}
    return {name: fields["tokens"][token_id] for name, token_id in ids.items() if token_id is not None}


def _token_id(fields: dict[str, Any], key: str) -> int | None:
    token_id = fields.get(key)
    return token_id if isinstance(token_id, int) and 0 <= token_id < len(fields["tokens"]) else None


def _adds_bos_by_default(fields: dict[str, Any]) -> bool:
    """What the format's reference reader assumes when a file does not say."""
    return fields["model"] == "llama" or fields.get("pre") in ("llama3", "llama-v3", "llama-bpe", "tekken")


def _vocab(tokens: Sequence[str]) -> dict[str, int]:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for token_id, token in enumerate(tokens) if vocab[token] != token_id)
        raise ModelLoadError(f"the token {twice!r} is listed twice")
    return vocab


def _byte_level_bpe(fields: dict[str, Any]) -> Tokenizer:
    merges = fields.get("merges")
    if not isinstance(merges, list):
        raise ModelLoadError(f"{_PREFIX}merges is missing")
    rules = pre_tokenizer_named(fields.get("pre", "default"))
    library = Tokenizer(
        BPE(
            vocab=_vocab(fields["tokens"]),
            merges=[_pair(merge) for merge in merges],
            ignore_merges=rules.takes_whole_words,
        )
    )
    library.normalizer = rules.normalizer
    library.pre_tokenizer = rules.pre_tokenizer
    library.decoder = decoders.ByteLevel()
    return library


def _pair(merge: str) -> tuple[str, str]:
    # The second blank at the earliest: a part of a merge may begin with one in some files, but is never empty.
    left, _, right = merge[1:].partition(" ")
    return merge[0] + left, right


def _sentencepiece_bpe(fields: dict[str, Any]) -> Tokenizer:
    tokens, scores = fields["tokens"], fields.get("scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelLoadError(f"{_PREFIX}scores does not hold one number a token")
    vocab = _vocab(tokens)
    unknown = _token_id(fields, "unknown_token_id")
    library = Tokenizer(
        BPE(
            vocab=vocab,
            merges=list(_merges_by_score(tokens, vocab, scores)),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    adds_space = bool(fields.get("add_space_prefix", True))
    steps = [normalizers.Prepend("▁")] if adds_space else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return library


def _merges_by_score(
    tokens: Sequence[str], vocab: dict[str, int], scores: Sequence[float]
) -> Iterator[tuple[str, str]]:
    """Every way to build a token of two others, best score first: what sentencepiece merges, in its order."""
    order = sorted((token_id for token_id in range(len(tokens)) if len(tokens[token_id]) > 1), key=lambda i: -scores[i])
    for token_id in order:
        token = tokens[token_id]
        for at in range(1, len(token)):
            if token[:at] in vocab and token[at:] in vocab:
                yield token[:at], token[at:]


def _add_tokens(library: Tokenizer, fields: dict[str, Any]) -> None:
    """Makes control tokens special and user-defined ones whole; none of them changes its id."""
    tokens, types = fields["tokens"], fields.get("token_type", [])
    special = _of_type(tokens, types, {_UNKNOWN, _CONTROL})
    user = [AddedToken(token, special=False, normalized=False) for token in _of_type(tokens, types, {_USER_DEFINED})]
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    library.add_tokens(user)
    if library.get_vocab_size() != len(tokens):
        raise ModelLoadError(f"rebuilt with {library.get_vocab_size()} ids, the file lists {len(tokens)}")


def _of_type(tokens: Sequence[str], types: Sequence[int], wanted: set[int]) -> list[str]:
    return [token for token, kind in zip(tokens, types, strict=False) if kind in wanted]
