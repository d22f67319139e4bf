"""Chat messages in a history that also has text, tokens and answers: what to write when more messages come.

A history is written once and never again: what the model saw and what it said stays as it is, token for token, even
where the chat template would now write it otherwise (templates drop old thinking, say). So of a history

    [ fixed: already computed, said or given as text | written: messages since then, as the template writes them ]

only the written part may change when messages follow, and it is the template's own output:

- While nothing is fixed, the whole history is what the template makes of all messages, just as for a chat request.
- Behind an answer, the template writes the conversation with a mark in the place of that answer; what follows the mark
  closes the turn and goes on with the new messages. If the model closed its turn itself, that is not written twice.
- The opening of the next answer comes when something is generated or text is appended, not before, so that a context
  can be prepared, marked and forked first, and more messages can still follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.text.chat_template import ChatTemplate
from engine.text.errors import TemplateError
from engine.text.tokenizer import Tokenizer
from extensions.parsing.detection import format_of
from extensions.parsing.formats import ToolFormat
from extensions.parsing.plain import plain_text
from extensions.parsing.tool_messages import fit_template

_MARK = "WYE-ANSWER-7f3c91"
"""Stands for what the model said; no template changes text without spaces."""

_FOREIGN_ROLES = frozenset({"tool", "function"})

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """How a history is to change.

    Attributes:
        num_kept: Tokens that stay, from its beginning.
        token_ids: What comes behind them.
        transcript: What is known of it then.
    """

    num_kept: int
    token_ids: list[int]
    transcript: Transcript


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """What is known of a history as a conversation. Never changes, so that copies and marks cost nothing.

    Attributes:
        messages: All of it, answers of the model as marks.
        num_fixed: Tokens that stay as they are.
        num_fixed_messages: Messages that are in them.
        is_open: The history ends inside an answer.
        tools: Tools that the model is told of, besides those of the request.
    """

    messages: tuple[Message, ...] = ()
    num_fixed: int = 0
    num_fixed_messages: int = 0
    is_open: bool = False
    tools: tuple[Message, ...] = ()

    @property
    def awaits_answer(self) -> bool:
        """True if messages came last: the answer to them has not been opened."""
        return bool(self.messages) and not self.is_open and self.num_fixed_messages < len(self.messages)

    def fixed(self, length: int) -> Transcript:
        """The same, all of it to stay as it is."""
        return replace(self, num_fixed=length, num_fixed_messages=len(self.messages))

    def cut(self, length: int) -> Transcript:
        """What remains known of a history cut anywhere: that it stays, and the messages before what was cut."""
        kept = self.messages[: self.num_fixed_messages]
        return replace(self, messages=kept, num_fixed=length, num_fixed_messages=len(kept))


class ChatWriter:
    """Writes messages with a model's chat template.

    Args:
        template: The model's; None for a model without one.
        tokenizer: Of the same model.
        end_ids: Tokens with which the model closes a turn.
        tools: Tools of the request, for the template.
        foreign: Special tokens that are text, wherever they are written; those in answers of tools always are.
        tool_format: How the model writes calls of tools; the template tells if it is left out.
        variables: More variables for the template.
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        end_ids: frozenset[int],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        foreign: Collection[str] = (),
        tool_format: ToolFormat | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._plain = plain_text(tokenizer)
        self._end_ids = end_ids
        self._tools = list(tools)
        self._foreign = foreign
        self._format = tool_format or format_of(template)
        self._variables = dict(variables or {})

    def append(self, transcript: Transcript, history: Sequence[int], messages: Sequence[Message]) -> Edit:
        """Messages behind a history.

        Raises:
            TemplateError: There is no template, or it refuses them.
        """
        known = transcript.messages[: transcript.num_fixed_messages]
        written = (*transcript.messages[transcript.num_fixed_messages :], *messages)
        after = replace(transcript, messages=(*known, *written), is_open=False)
        return self._write(transcript, history, after, opens=False)

    def offer(self, transcript: Transcript, history: Sequence[int], tools: Sequence[Message]) -> Edit:
        """Tools that the model is told of: where its template tells of them, or behind what cannot change any more.

        Raises:
            TemplateError: There is no template, or it refuses them.
        """
        known = [*self._tools, *transcript.tools]
        new = tuple(tool for tool in tools if tool not in known)
        after = replace(transcript, tools=(*transcript.tools, *new))
        if not new:
            return Edit(len(history), [], transcript)
        if transcript.num_fixed == 0 and transcript.messages:
            return self._write(transcript, history, after, opens=False)
        told = self._format.instructions([dict(tool) for tool in new])
        try:
            return self.append(after, history, [{"role": "system", "content": told}])
        except TemplateError:  # no such message behind others
            return self.append(after, history, [{"role": "user", "content": told}])

    def open_answer(self, transcript: Transcript, history: Sequence[int]) -> Edit:
        """The opening of the model's answer behind messages.

        Raises:
            TemplateError: The template refuses the conversation.
        """
        edit = self._write(transcript, history, transcript, opens=True)
        answered = (*transcript.messages, {"role": "assistant", "content": _MARK})
        length = edit.num_kept + len(edit.token_ids)
        opened = Transcript(
            messages=answered,
            num_fixed=length,
            num_fixed_messages=len(answered),
            is_open=True,
            tools=transcript.tools,
        )
        return Edit(edit.num_kept, edit.token_ids, opened)

    def _write(self, before: Transcript, history: Sequence[int], after: Transcript, *, opens: bool) -> Edit:
        text = self._text_behind(before, after, opens=opens)
        ids = self._plain.encode(text)
        num_kept = before.num_fixed
        if (
            num_kept
            and ids
            and before.num_fixed_messages
            and ids[0] in self._end_ids
            and history[num_kept - 1] == ids[0]
        ):
            ids = ids[1:]
        same = 0
        rest = history[num_kept:]
        while same < len(rest) and same < len(ids) and rest[same] == ids[same]:
            same += 1
        return Edit(num_kept + same, ids[same:], after)

    def _text_behind(self, before: Transcript, after: Transcript, *, opens: bool) -> str:
        """What the template writes behind the fixed part of a history."""
        tools = [*self._tools, *after.tools]
        whole = self._render(after.messages, tools, opens=opens)
        if before.num_fixed == 0:
            return whole
        known = after.messages[: before.num_fixed_messages]
        if not known:
            return self._without_beginning(whole)
        if known[-1].get("content") == _MARK:
            at = whole.rfind(_MARK)
            if at >= 0:
                return whole[at + len(_MARK) :]
        start = self._render(known, tools, opens=False)
        if whole.startswith(start):
            return whole[len(start) :]
        raise TemplateError("the chat template cannot go on from the messages before these")

    def _without_beginning(self, text: str) -> str:
        """Text without the token that opens a conversation, which the history has behind it."""
        bos_id = self._tokenizer.bos_token_id
        if bos_id is None:
            return text
        # What opens a message opens a text too with some models; then the template does not speak of it, and it stays.
        writes_it = self._template is not None and self._template.uses("bos_token")
        return text.removeprefix(self._tokenizer.spelling(bos_id).text) if writes_it else text

    def _render(self, messages: Sequence[Message], tools: Sequence[Message], *, opens: bool) -> str:
        if self._template is None:
            raise TemplateError("this model has no chat template: give text or token ids instead of messages")
        given = [self._without_specials(one) for one in messages]
        if not self._template.uses("developer"):
            given = [{**one, "role": "system"} if one["role"] == "developer" else one for one in given]
        functions = [dict(tool) for tool in tools]
        fitted = fit_template(given, functions, self._template, self._format)
        return self._template.render(fitted, tools=functions or None, add_generation_prompt=opens, **self._variables)

    def _without_specials(self, message: Message) -> dict[str, Any]:
        """A message whose text holds no special token that a stranger wrote."""
        given = dict(message)
        is_foreign = given["role"] in _FOREIGN_ROLES
        if isinstance(given.get("content"), str) and (is_foreign or self._foreign):
            given["content"] = self._plain.cut(given["content"], None if is_foreign else self._foreign)
        return given


def read_messages(value: Sequence[Any]) -> list[Message]:
    """Messages that a script gives, as templates take them.

    Raises:
        TemplateError: One of them is none.
    """
    messages: list[Message] = []
    for at, message in enumerate(value):
        if not isinstance(message, Mapping):
            raise TemplateError(f"messages[{at}] must be a dict with 'role' and 'content'")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise TemplateError(f"messages[{at}] has no role")
        if role == "tool" and content is not None:
            content = _told(content, at)
        if content is not None and not isinstance(content, str):
            raise TemplateError(f"messages[{at}]: content must be text")
        given = {**message, "content": content or ""}
        if message.get("tool_calls"):
            given["tool_calls"] = [_read_call(call, at) for call in message["tool_calls"]]
        messages.append(given)
    return messages


def _told(content: object, at: int) -> str:
    """What a tool has answered: text as it is, any other JSON value as JSON.

    Raises:
        TemplateError: It is no JSON.
    """
    if isinstance(content, str):
        return content
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"messages[{at}]: content must be text or a JSON value: {error}") from None


def _read_call(call: object, at: int) -> dict[str, Any]:
    """A call as templates take it; a script may give name and arguments alone.

    Raises:
        TemplateError: It is none.
    """
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"messages[{at}]: each of tool_calls must be a dict with 'name' and 'arguments'")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            decoded = json.loads(arguments)
        except ValueError:
            decoded = None
        arguments = decoded if isinstance(decoded, dict) else arguments
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}
