"""Filling in the middle: a prompt and a suffix, arranged as the model was trained to see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class InfillFormat:
    """Tokens around the two parts of one text, as their vocabulary spells them.

    Attributes:
        prefix: Before the text that comes first.
        suffix: Before the text that comes last.
        middle: Where the model begins to write; None if it does so right after the prefix, which then stands last.
        ends: What some models write after the middle, besides their end tokens.
    """

    prefix: str
    suffix: str
    middle: str | None
    ends: tuple[str, ...] = ()


FORMATS = (
    # Qwen2.5-Coder and Qwen3-Coder.
    InfillFormat(
        "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
    ),
    # StarCoder, StarCoder2, Granite and Stable Code.
    InfillFormat("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>")),
    # DeepSeek-Coder.
    InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Code Llama.
    InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # Codestral.
    InfillFormat("[PREFIX]", "[SUFFIX]", None),
)
"""Looked for in this order."""


@dataclass(frozen=True, slots=True)
class Infill:
    """How one model fills in.

    Attributes:
        prefix, suffix, middle: Token ids of the marks.
        end_ids: Tokens that end what it fills in.
    """

    prefix: int
    suffix: int
    middle: int | None
    end_ids: tuple[int, ...]

    @classmethod
    def find(cls, tokenizer: Tokenizer) -> Infill | None:
        """How the model of `tokenizer` fills in; None if its vocabulary has no tokens for it."""
        for form in FORMATS:
            prefix, suffix = _id_of(tokenizer, form.prefix), _id_of(tokenizer, form.suffix)
            middle = None if form.middle is None else _id_of(tokenizer, form.middle)
            if prefix is None or suffix is None or (middle is None) != (form.middle is None):
                continue
            ends = [_id_of(tokenizer, mark) for mark in form.ends]
            return cls(prefix, suffix, middle, tuple(end for end in ends if end is not None))
        return None

    def arrange(self, opening: Sequence[int], before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The prompt for what stands between two texts.

        Args:
            opening: The tokenizer's opening token, if the prompt is to have one.
            before: Tokens of the text that comes first.
            after: Tokens of the text that comes last.
        """
        if self.middle is None:
            return [*opening, self.suffix, *after, self.prefix, *before]
        return [*opening, self.prefix, *before, self.suffix, *after, self.middle]


def _id_of(tokenizer: Tokenizer, mark: str) -> int | None:
    ids = tokenizer.encode(mark, add_special=False)
    # A mark that the vocabulary lacks is cut into several tokens, or into one that means something else.
    return ids[0] if len(ids) == 1 and tokenizer.token_text(ids[0]) == mark else None
