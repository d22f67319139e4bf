"""Chat messages to the text a model was trained on, by the model's own template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from engine.errors import ModelLoadError
from engine.gguf_metadata import read_metadata
from engine.text.errors import TemplateError
from engine.text.gguf_tokenizer import named_tokens_of
from engine.text.messages import continue_final, plain, prepare_messages
from engine.text.sandbox import Clock, Limits, TemplateEnvironment
from engine.text.special_tokens import named_tokens, read_tokenizer_config

RESERVED = frozenset(
    {
        "messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens",
        "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
        "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner",
    }
)  # fmt: skip
"""Names a caller must not pass as template variables: they steer rendering or would hide what templates rely on."""


class ChatTemplate:
    """A model's chat template, compiled. Gives the text that `transformers` gives.

    Rendering is sandboxed: a template can compute and raise, nothing else. It never changes; rendering is safe from
    several threads.

    Attributes:
        source: The template (the one named `default` of several).
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        now: Clock = datetime.now,
        limits: Limits | None = None,
    ) -> None:
        """Compiles the template.

        Args:
            source: Jinja text, or several by name: `default`, and `tool_use` for requests with tools.
            special_tokens: Passed as variables: `bos_token`, `eos_token`...
            now: Current local time, for templates that print the date.
            limits: How long and large rendering may become.

        Raises:
            ModelLoadError: It is no valid template.
        """
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if "default" not in sources:
            raise ModelLoadError(f"no chat template is named 'default' among {sorted(sources)}")
        self.source = sources["default"]
        self._special_tokens = dict(special_tokens or {})
        self._environment = TemplateEnvironment(now, limits or Limits())
        self._sources = sources
        self._compiled = {name: self._compile(name, text) for name, text in sources.items()}

    @classmethod
    def load(cls, path: str | Path) -> ChatTemplate | None:
        """Reads the template of a model directory or a GGUF file; None if it has none.

        Raises:
            ModelLoadError: A file is damaged, or the template does not compile.
        """
        path = Path(path)
        source, special_tokens = _read_directory(path) if path.is_dir() else _read_gguf(path)
        if not source:
            return None
        try:
            return cls(source, special_tokens)
        except ModelLoadError as error:
            raise ModelLoadError(f"{path}: {error.message}") from error

    def uses(self, word: str) -> bool:
        """True if the template's text mentions a word, such as `tools` or `enable_thinking`."""
        return any(word in source for source in self._sources.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Returns the prompt text; encode it without adding special tokens.

        Args:
            messages: At least one; plain JSON values. Keys that are None count as absent.
            tools: JSON schemas of functions.
            add_generation_prompt: End with the opening of an assistant turn.
            continue_final_message: End inside the last message, so that the model goes on with it.
            **kwargs: Further variables of the template; see `RESERVED`.

        Raises:
            TemplateError: The template refused the messages (its own words), failed, or exceeded its limits.
        """
        if not messages:
            raise TemplateError("at least one message is needed")
        if continue_final_message and add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other")
        name = "tool_use" if tools is not None and "tool_use" in self._compiled else "default"
        prepared = prepare_messages(messages)
        variables = {
            **self._special_tokens,
            "messages": prepared,
            "tools": plain(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **plain(kwargs),
        }
        if continue_final_message:
            return continue_final(prepared, lambda: self._environment.run(self._compiled[name], variables))
        return self._environment.run(self._compiled[name], variables)

    def _compile(self, name: str, source: str) -> jinja2.Template:
        try:
            return self._environment.compile_text(source)
        except jinja2.TemplateError as error:
            raise ModelLoadError(f"the chat template {name!r} is no valid Jinja: {error}") from error


def _read_directory(directory: Path) -> tuple[str | dict[str, str], dict[str, str]]:
    config = read_tokenizer_config(directory)
    sources = _read_files(directory)
    if not sources:
        sources = _from_config(config.get("chat_template"), directory)
    return sources, named_tokens(config)


def _read_files(directory: Path) -> dict[str, str]:
    files = {"default": directory / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    try:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{directory}: a chat template is not readable: {error}") from error


def _from_config(value: object, directory: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise ModelLoadError(f"{directory / 'tokenizer_config.json'}: chat_template is neither text nor named texts")
    return value


def _read_gguf(path: Path) -> tuple[str | dict[str, str], dict[str, str]]:
    keys = read_metadata(path, _is_template_key)
    source = keys.get("tokenizer.chat_template")
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in keys.items()}
    if not isinstance(source, str) or not isinstance(fields.get("tokens"), list):
        return "", {}
    tool_use = keys.get("tokenizer.chat_template.tool_use")
    named = {"default": source} | ({"tool_use": tool_use} if isinstance(tool_use, str) else {})
    return named, named_tokens_of(fields)


def _is_template_key(key: str) -> bool:
    return key.startswith("tokenizer.chat_template") or key == "tokenizer.ggml.tokens" or key.endswith("_token_id")
