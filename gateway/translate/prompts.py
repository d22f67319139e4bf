"""Text and messages to prompt tokens, refusing early what cannot fit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from engine.text.errors import InvalidText, TemplateError
from engine.text.model import TextModel
from extensions.parsing.detection import detect_tool_format
from extensions.parsing.formats import ToolFormat
from extensions.parsing.tool_messages import fit_template
from gateway.errors import BadRequest, PromptTooLong
from gateway.schemas.chat import ChatRequest, TemplateFields
from gateway.schemas.tools import tool_use
from gateway.translate.untrusted import without_special

INLINE_CHARS = 8_192
"""Longer text is tokenised in a thread, so that other requests go on meanwhile."""


async def encode_text(text: TextModel, prompt: str, limit_tokens: int, *, param: str, add_special: bool) -> list[int]:
    """Tokenises one prompt.

    Args:
        text: The model's text side.
        prompt: Any length.
        limit_tokens: Most tokens of one sequence; text that surely has more is not tokenised at all.
        param: The wire's name for where the text came from.
        add_special: Begin with the opening token if the tokenizer does so.

    Raises:
        PromptTooLong: It has more tokens than `limit_tokens`.
        BadRequest: It is no valid text.
    """
    if text.tokenizer.cannot_fit(prompt, limit_tokens):
        raise PromptTooLong(limit_tokens, limit_tokens + 1, param)
    try:
        if len(prompt) <= INLINE_CHARS:
            return text.tokenizer.encode(prompt, add_special=add_special)
        return await asyncio.to_thread(text.tokenizer.encode, prompt, add_special=add_special)
    except InvalidText as error:
        raise BadRequest(f"Invalid '{param}': {error.message}.", param) from None


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Refuses a prompt of ids that are not all in the vocabulary.

    Raises:
        BadRequest: One is not; `param` names it.
    """
    if max(ids, default=0) < vocab_size:
        return
    place = next(place for place, token_id in enumerate(ids) if token_id >= vocab_size)
    at = f"{param}[{place}]"
    raise BadRequest(f"Invalid '{at}': token id {ids[place]} is outside the vocabulary of {vocab_size}.", at)


async def encode_messages(
    text: TextModel, fields: TemplateFields, limit_tokens: int, tool_format: ToolFormat
) -> list[int]:
    """Renders a conversation through the model's chat template and tokenises it; see `render_messages`."""
    prompt = render_messages(text, fields, limit_tokens, tool_format=tool_format)
    return await encode_text(text, prompt, limit_tokens, param="messages", add_special=fields.add_special_tokens)


def render_messages(
    text: TextModel,
    fields: TemplateFields,
    limit_tokens: int,
    variables: dict[str, Any] | None = None,
    tool_format: ToolFormat | None = None,
) -> str:
    """Renders a conversation through the model's chat template.

    Args:
        text: The model's text side.
        fields: Messages, tools and how the prompt ends.
        limit_tokens: Most tokens of one sequence.
        variables: More template variables; those of the request itself win.
        tool_format: How the model writes calls, if the template is not to tell.

    Raises:
        BadRequest: The model has no chat template, or the template refused the messages.
        PromptTooLong: The conversation surely has more tokens than `limit_tokens`.
    """
    template = text.chat_template
    if template is None:
        raise BadRequest("This model has no chat template; use /v1/completions.", "messages")
    if len(fields.messages) > limit_tokens:
        raise PromptTooLong(limit_tokens, len(fields.messages), "messages")
    messages = [turn for message in fields.messages for turn in message.turns()]
    for one in messages:
        if one["role"] == "tool":
            one["content"] = without_special(one["content"], text.tokenizer)
    if not template.uses("developer"):
        messages = [{**one, "role": "system"} if one["role"] == "developer" else one for one in messages]
    tools = [tool.for_template() for tool in fields.tools]
    messages = fit_template(messages, tools, template, tool_format or detect_tool_format(template))
    kwargs = {**(variables or {}), **fields.chat_template_kwargs}
    try:
        return template.render(
            messages,
            tools=tools or None,
            add_generation_prompt=fields.opens_turn,
            continue_final_message=fields.continue_final_message,
            **kwargs,
        )
    except TemplateError as error:
        raise BadRequest(f"Invalid 'messages': {error.message}", "messages") from None


def chat_fields(request: ChatRequest) -> tuple[TemplateFields, dict[str, Any]]:
    """What the template of a chat request gets: its fields, without tools that may not be called, and variables.

    Raises:
        BadRequest: `tool_choice` does not go with `tools`.
    """
    tools = list(tool_use(request.tool_choice, request.tools).tools)
    fields = request if len(tools) == len(request.tools) else request.model_copy(update={"tools": tools})
    variables: dict[str, Any] = {}
    if request.reasoning_effort is not None:
        # Templates call this by several names.
        thinks = request.reasoning_effort != "none"
        variables |= {"reasoning_effort": request.reasoning_effort, "enable_thinking": thinks, "thinking": thinks}
    if request.verbosity is not None:
        variables["verbosity"] = request.verbosity
    if request.documents:
        variables["documents"] = request.documents
    return fields, variables


def truncate_prompt(
    ids: list[int], keep: int | None, limit_tokens: int, max_tokens: int | None, side: Literal["left", "right"] = "left"
) -> list[int]:
    """At most `keep` tokens of a prompt; -1 keeps as many as leave room for the output; None keeps all.

    Args:
        ids: The prompt.
        keep: How many.
        limit_tokens: Most tokens of one sequence.
        max_tokens: Output tokens, if there is a limit.
        side: Where tokens are left out.

    Raises:
        BadRequest: `keep` is 0: no prompt would be left.
    """
    if keep is None:
        return ids
    if keep == 0:
        raise BadRequest("'truncate_prompt_tokens' must not be 0.", "truncate_prompt_tokens")
    if keep == -1:
        keep = max(limit_tokens - (1 if max_tokens is None else max_tokens), 1)
    return ids[-keep:] if side == "left" else ids[:keep]
