"""Which formats a model uses, by its chat template."""

from __future__ import annotations

from functools import lru_cache

from engine.text.chat_template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from extensions.parsing.formats import FORMATS, FormatName, ToolFormat
from extensions.parsing.reasoning import MARKERS, Thinking

_TELLTALES: tuple[tuple[str, FormatName], ...] = (
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("[func_name1(params_name1=", "llama_pythonic"),
    ("<|python_start|>", "llama_pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ('"parameters": dictionary of argument name', "llama3_json"),
    ("named SmolLM", "smollm2"),
)
"""What only templates of a family contain, most telling first."""


@lru_cache(maxsize=64)
def detect_tool_format(template: ChatTemplate) -> ToolFormat:
    """The family's format that a chat template shows, or the generic one."""
    return FORMATS[next((name for text, name in _TELLTALES if template.uses(text)), "generic")]


def format_of(template: ChatTemplate | None) -> ToolFormat:
    """The same for a model that may have no chat template."""
    return FORMATS["generic"] if template is None else detect_tool_format(template)


@lru_cache(maxsize=64)
def detect_thinking(template: ChatTemplate) -> Thinking:
    """The markers of thinking that a chat template shows, or the most usual ones."""
    shown = next((pair for pair in MARKERS.values() if template.uses(pair[1])), MARKERS["think"])
    return Thinking(start=shown[0], end=shown[1])


@lru_cache(maxsize=64)
def special_marker_ids(tokenizer: Tokenizer, markers: tuple[str, ...]) -> frozenset[int]:
    """Ids of those markers that are special tokens, which must be shown all the same."""
    found = (special_marker_id(tokenizer, marker) for marker in markers)
    return frozenset(token_id for token_id in found if token_id is not None)


@lru_cache(maxsize=256)
def special_marker_id(tokenizer: Tokenizer, marker: str) -> int | None:
    """The id of a marker that is a special token, else None."""
    ids = tokenizer.encode(marker, add_special=False)
    return ids[0] if len(ids) == 1 and ids[0] in tokenizer.special_ids else None
