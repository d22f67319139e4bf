"""Everything a model knows about text, loaded once per gateway worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class TextModel:
    """A model's tokenizer and chat template. Cheap to share, never changes.

    Attributes:
        path: The model directory or GGUF file.
        tokenizer: Text to ids and back.
        chat_template: Messages to text; None for a model without one.
    """

    path: Path
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @classmethod
    def load(cls, path: str | Path) -> TextModel:
        """Reads tokenizer and template of a model directory or a GGUF file. Blocks for some tenths of a second.

        Raises:
            ModelLoadError: A file is missing, damaged or of an unknown kind.
        """
        path = Path(path)
        return cls(path=path, tokenizer=Tokenizer.load(path), chat_template=ChatTemplate.load(path))
