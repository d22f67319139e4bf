"""What a conversation comes to behind a prefix that stays as it is, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import EngineInfo
from engine.text.model import TextModel
from extensions.parsing.formats import ToolFormat
from extensions.programs.transcript import ChatWriter, Edit, Message, Transcript
from gateway.errors import PromptTooLong, UnsupportedParameter
from gateway.schemas.chat import TemplateFields

INLINE_CHARS = 8_192
"""Longer conversations are written in a thread, so that other requests go on meanwhile."""


@dataclass(frozen=True, slots=True)
class PrefixStart:
    """A history to go on from.

    Attributes:
        token_ids: Its tokens.
        transcript: What is known of it as a conversation.
    """

    token_ids: Sequence[int]
    transcript: Transcript


async def write_messages(
    text: TextModel,
    info: EngineInfo,
    start: PrefixStart,
    messages: Sequence[Message],
    tools: Sequence[Message],
    *,
    opens: bool,
    tool_format: ToolFormat | None = None,
    variables: Mapping[str, Any] | None = None,
) -> PrefixStart:
    """The history with messages behind it, as the chat template writes them there.

    Args:
        text: The model's text side.
        info: Of the engine.
        start: What is there.
        messages: What comes behind it, as templates take them.
        tools: Functions that the model is told of.
        opens: Whether the next answer is opened.
        tool_format: How the model writes calls; its template tells if it is left out.
        variables: More variables for the template.

    Raises:
        TemplateError: There is no template, or it cannot go on from there.
        PromptTooLong: The messages have more tokens than any history can have.
    """
    limit = info.limit_tokens
    texts = [str(one.get("content") or "") for one in messages]
    if len(messages) > limit or any(text.tokenizer.cannot_fit(one, limit) for one in texts):
        raise PromptTooLong(limit, limit + 1, "messages")
    writer = ChatWriter(
        text.chat_template,
        text.tokenizer,
        frozenset(info.eos_token_ids),
        tool_format=tool_format,
        variables=variables,
    )

    def write() -> PrefixStart:
        found = start
        if tools and start.token_ids:
            found = _edited(found, writer.offer(found.transcript, found.token_ids, tools))
        found = _edited(found, writer.append(found.transcript, found.token_ids, messages))
        if tools and not start.token_ids:  # where the template tells of them, once there are messages
            found = _edited(found, writer.offer(found.transcript, found.token_ids, tools))
        if opens:
            found = _edited(found, writer.open_answer(found.transcript, found.token_ids))
        return found

    return await asyncio.to_thread(write) if sum(map(len, texts)) > INLINE_CHARS else write()


async def chat_behind(
    text: TextModel,
    info: EngineInfo,
    start: PrefixStart,
    fields: TemplateFields,
    variables: Mapping[str, Any],
    tool_format: ToolFormat,
) -> list[int]:
    """The prompt of a chat request that goes on from a prefix.

    Raises:
        TemplateError: There is no template, or it cannot go on from there.
        PromptTooLong: The messages have more tokens than any history can have.
        UnsupportedParameter: It asks for what cannot be behind a prefix.
    """
    if fields.continue_final_message:
        message = "'continue_final_message' does not go with 'prefix': an answer that is to go on is a part of it."
        raise UnsupportedParameter("continue_final_message", message)
    fixed = PrefixStart(start.token_ids, start.transcript.fixed(len(start.token_ids)))
    written = await write_messages(
        text,
        info,
        fixed,
        [turn for message in fields.messages for turn in message.turns()],
        [tool.for_template() for tool in fields.tools],
        opens=fields.opens_turn,
        tool_format=tool_format,
        variables={**variables, **fields.chat_template_kwargs},
    )
    return list(written.token_ids)


def _edited(start: PrefixStart, edit: Edit) -> PrefixStart:
    return PrefixStart([*start.token_ids[: edit.num_kept], *edit.token_ids], edit.transcript)
