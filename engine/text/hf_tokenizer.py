"""The tokenizer of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from engine.errors import ModelLoadError
from engine.text.special_tokens import extra_tokens, named_tokens, read_tokenizer_config

_OTHER_FORMATS = ("tokenizer.model", "tekken.json", "spiece.model", "vocab.json", "vocab.txt")


class TokenizerParts(NamedTuple):
    """What a loader returns.

    Attributes:
        library: Vocabulary, rules and added tokens.
        bos_token_id: The token that opens a text, if any.
        adds_bos: Completion prompts begin with it.
        closing_ids: Tokens that end a text that is to be embedded.
    """

    library: Tokenizer
    bos_token_id: int | None
    adds_bos: bool
    closing_ids: tuple[int, ...] = ()


def load_directory(directory: Path) -> TokenizerParts:
    """Reads `tokenizer.json` and what `tokenizer_config.json` adds to it.

    Raises:
        ModelLoadError: There is no readable `tokenizer.json`.
    """
    library = _read_library(directory)
    library.no_truncation()
    library.no_padding()
    config = read_tokenizer_config(directory)
    _add_configured_tokens(library, config)
    named = named_tokens(config)
    bos_token = named.get("bos_token")
    bos_token_id = None if bos_token is None else library.token_to_id(bos_token)
    explicit = config.get("add_bos_token")
    adds_bos = explicit if isinstance(explicit, bool) else _opens_with(library, bos_token_id)
    return TokenizerParts(library, bos_token_id, adds_bos, _closing_ids(library, config, named.get("eos_token")))


def _read_library(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        found = [name for name in _OTHER_FORMATS if (directory / name).is_file()]
        hint = f"; {found[0]} alone is not supported, convert it to tokenizer.json first" if found else ""
        raise ModelLoadError(f"{directory}: has no tokenizer.json{hint}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with the file
        raise ModelLoadError(f"{path}: not a readable tokenizer: {error}") from error


def _add_configured_tokens(library: Tokenizer, config: Mapping[str, Any]) -> None:
    """Makes tokens special that the configuration calls so, as long as that moves no id."""
    known = library.get_added_tokens_decoder()
    next_id = library.get_vocab_size()
    missing = []
    for token_id, entry in sorted(_added_entries(config).items()):
        content, is_special = entry["content"], bool(entry.get("special", False))
        if token_id in known and known[token_id].content == content and known[token_id].special == is_special:
            continue
        present_id = library.token_to_id(content)
        if present_id == token_id or (present_id is None and token_id == next_id):
            next_id += present_id is None
            flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
            missing.append(AddedToken(content, special=is_special, **flags))
    library.add_tokens(missing)
    special = {token.content for token in library.get_added_tokens_decoder().values() if token.special}
    named = {*named_tokens(config).values(), *extra_tokens(config)} - special
    present = sorted(content for content in named if library.token_to_id(content) is not None)
    library.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in present])


def _added_entries(config: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    entries = config.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return {}
    return {
        int(token_id): entry
        for token_id, entry in entries.items()
        if str(token_id).isdigit() and isinstance(entry, dict) and isinstance(entry.get("content"), str)
    }


def _opens_with(library: Tokenizer, bos_token_id: int | None) -> bool:
    """True if the tokenizer's own rules put the token before a text."""
    return bos_token_id is not None and library.encode("a", add_special_tokens=True).ids[:1] == [bos_token_id]


def _closing_ids(library: Tokenizer, config: Mapping[str, Any], eos_token: str | None) -> tuple[int, ...]:
    """What comes behind a text: the end token if the configuration says so, else what the tokenizer's own rules add."""
    explicit = config.get("add_eos_token")
    if isinstance(explicit, bool):
        eos_token_id = library.token_to_id(eos_token) if explicit and eos_token is not None else None
        return () if eos_token_id is None else (eos_token_id,)
    text = "a"
    plain, marked = (library.encode(text, add_special_tokens=adds).ids for adds in (False, True))
    starts = (at for at in range(len(marked) - len(plain) + 1) if marked[at : at + len(plain)] == plain)
    return tuple(marked[next(starts, len(marked)) + len(plain) :])
