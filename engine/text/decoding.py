"""From a token's string in the vocabulary to the bytes it stands for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelLoadError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_META_SPACE = "▁"


def _byte_chars() -> dict[str, int]:
    """The alphabet of byte-level BPE: a printable character for each of the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(rest)}


BYTE_OF_CHAR = _byte_chars()


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenDecoding:
    """How the strings of a vocabulary become bytes.

    Attributes:
        is_byte_level: Each character stands for one byte.
        has_byte_tokens: `<0x0A>` stands for the byte 10.
        space: What stands for a space, if anything does.
        num_stripped: Spaces dropped from the beginning of a text.
        strips_first_token: Every `space` of a text's first token is dropped.
    """

    is_byte_level: bool = False
    has_byte_tokens: bool = False
    space: str | None = None
    num_stripped: int = 0
    strips_first_token: bool = False

    @classmethod
    def from_decoder(cls, decoder: Any) -> TokenDecoding:
        """Reads the rules off a decoder of the `tokenizers` library.

        Raises:
            ModelLoadError: The decoder is of a kind whose tokens have no bytes of their own.
        """
        steps = [] if decoder is None else _flatten(json.loads(decoder.__getstate__()))
        rules: dict[str, Any] = {}
        for step in steps:
            rules |= _rules(step)
        return cls(**rules)

    def token_bytes(self, token: str, *, at_start: bool = False) -> bytes:
        """Bytes of one vocabulary entry (no added token); `at_start` if it opens a text."""
        if self.is_byte_level:
            try:
                return bytes([BYTE_OF_CHAR[char] for char in token])
            except KeyError:
                return token.encode("utf-8")
        if self.has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        if self.space is not None:
            token = token.replace(self.space, "" if at_start and self.strips_first_token else " ")
        return self.strip_start(token.encode("utf-8")) if at_start else token.encode("utf-8")

    def strip_start(self, data: bytes) -> bytes:
        """Drops the spaces that do not belong to the beginning of a text."""
        num_spaces = len(data) - len(data.lstrip(b" "))
        return data[min(num_spaces, self.num_stripped) :]


def _flatten(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for child in step["decoders"] for inner in _flatten(child)]


def _rules(step: dict[str, Any]) -> dict[str, Any]:
    match step:
        case {"type": "ByteLevel"}:
            return {"is_byte_level": True}
        case {"type": "ByteFallback"}:
            return {"has_byte_tokens": True}
        case {"type": "Fuse"}:
            return {}
        case {"type": "Replace", "pattern": {"String": str(space)}, "content": " "}:
            return {"space": space}
        case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
            return {"num_stripped": start}
        case {"type": "Metaspace", "replacement": str(space), **rest}:
            return {"space": space, "strips_first_token": rest.get("prepend_scheme", "always") != "never"}
    raise ModelLoadError(f"the tokenizer's decoder {step['type']} is not supported: {json.dumps(step)}")
