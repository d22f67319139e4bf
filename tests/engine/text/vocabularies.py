"""Small tokenizers of the kinds that models use, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFWriter
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from tokenizers.trainers import BpeTrainer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    "hello world, hello again; wait... go 1234 5678",
    "alpha beta gamma delta ABCDEFGHIJKL",
    "naïve café 日本語 🙂🙃 👩‍🚀🚀",
    "def f(x):\n    return x ** 2\n",
]
SPECIAL = ("<|begin|>", "<|end|>")
USER_DEFINED = "<tool>"


def byte_level(vocab_size: int = 400) -> Tokenizer:
    """Byte-level BPE over all 256 bytes, with two special tokens and one user-defined one at the end."""
    library = Tokenizer(BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    library.add_tokens([AddedToken(USER_DEFINED, special=False, normalized=False)])
    return library


def token_id(library: Tokenizer, token: str) -> int:
    """The id of a token that exists."""
    found = library.token_to_id(token)
    assert found is not None
    return found


def add_bos_rule(library: Tokenizer, token: str) -> None:
    """Lets the tokenizer's own rules put a token before every text."""
    library.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, token_id(library, token))]
    )


def sentencepiece_tokens() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and GGUF token types of a small sentencepiece BPE model with byte tokens."""
    words = [
        "▁",
        "▁t",
        "▁the",
        "he",
        "▁he",
        "ll",
        "llo",
        "▁hello",
        "▁w",
        "or",
        "▁wor",
        "ld",
        "▁world",
        "th",
        "▁▁",
        "er",
    ]
    letters = list("abcdefghijklmnopqrstuvwxyz.,!")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    types = [2, 3, 3, *([6] * 256), *([1] * (len(words) + len(letters)))]
    return tokens, [0.0] * 259 + [-float(at) for at in range(len(words) + len(letters))], types


def sentencepiece() -> Tokenizer:
    """The same model as directories hold it: a space before the first word, dropped again in decoding."""
    tokens, scores, _ = sentencepiece_tokens()
    vocab = {token: at for at, token in enumerate(tokens)}
    by_score = sorted((token for token in tokens[259:] if len(token) > 1), key=lambda token: -scores[vocab[token]])
    merges = [
        (token[:at], token[at:])
        for token in by_score
        for at in range(1, len(token))
        if token[:at] in vocab and token[at:] in vocab
    ]
    library = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:3]])
    return library


def metaspace() -> Tokenizer:
    """A unigram model whose decoder drops the space of the first token."""
    pieces = ["<unk>", "▁", "▁hello", "▁world", "▁▁x", "a▁b", *"abcdefghijklmnopqrstuvwxyz"]
    library = Tokenizer(Unigram([(piece, -float(at)) for at, piece in enumerate(pieces)], unk_id=0))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens([AddedToken("<s>", special=True)])
    return library


def write_directory(directory: Path, library: Tokenizer, config: dict[str, Any] | None = None) -> Path:
    """Writes the tokenizer files of a model directory."""
    directory.mkdir(parents=True, exist_ok=True)
    library.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def write_gguf(
    path: Path,
    *,
    model: str = "gpt2",
    pre: str | None = "gpt-2",
    tokens: Sequence[str] | None = None,
    types: Sequence[int] | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: dict[str, int] | None = None,
    flags: dict[str, bool] | None = None,
    chat_template: str | None = None,
) -> Path:
    """Writes a GGUF file without tensors, holding just a tokenizer."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    for add, values in (
        (writer.add_token_list, tokens),
        (writer.add_token_types, types),
        (writer.add_token_merges, merges),
        (writer.add_token_scores, scores),
    ):
        if values is not None:
            add(values)
    for key, token_id in (ids or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", token_id)
    for key, flag in (flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{key}", flag)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level_parts(library: Tokenizer) -> dict[str, Any]:
    """Arguments of `write_gguf` that describe a byte-level tokenizer."""
    model = json.loads(library.model.__getstate__())
    tokens = [library.id_to_token(at) for at in range(library.get_vocab_size())]
    added = library.get_added_tokens_decoder()
    types = [(3 if added[at].special else 4) if at in added else 1 for at in range(len(tokens))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {"tokens": tokens, "types": types, "merges": merges}
