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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.text.chat_template import ChatTemplate
from engine.text.errors import TemplateError
from engine.text.tokenizer import Tokenizer

_MARK = "WYE-ANSWER-7f3c91"
"""Stands for what the model said; no template changes text without spaces."""

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
    """

    messages: tuple[Message, ...] = ()
    num_fixed: int = 0
    num_fixed_messages: int = 0
    is_open: bool = False

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
    """

    def __init__(
        self,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        end_ids: frozenset[int],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._tools = list(tools) or None

    def append(self, transcript: Transcript, history: Sequence[int], messages: Sequence[Message]) -> Edit:
        """Messages behind a history.

        Raises:
            TemplateError: There is no template, or it refuses them.
        """
        known = transcript.messages[: transcript.num_fixed_messages]
        written = (*transcript.messages[transcript.num_fixed_messages :], *messages)
        after = replace(transcript, messages=(*known, *written), is_open=False)
        return self._write(transcript, history, after, opens=False)

    def open_answer(self, transcript: Transcript, history: Sequence[int]) -> Edit:
        """The opening of the model's answer behind messages.

        Raises:
            TemplateError: The template refuses the conversation.
        """
        edit = self._write(transcript, history, transcript, opens=True)
        answered = (*transcript.messages, {"role": "assistant", "content": _MARK})
        length = edit.num_kept + len(edit.token_ids)
        opened = Transcript(messages=answered, num_fixed=length, num_fixed_messages=len(answered), is_open=True)
        return Edit(edit.num_kept, edit.token_ids, opened)

    def _write(self, before: Transcript, history: Sequence[int], after: Transcript, *, opens: bool) -> Edit:
        text = self._text_behind(before, after, opens=opens)
        ids = self._tokenizer.encode(text, add_special=False)
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
        whole = self._render(after.messages, opens=opens)
        if before.num_fixed == 0:
            return whole
        known = after.messages[: before.num_fixed_messages]
        if not known:
            return self._without_beginning(whole)
        if known[-1].get("content") == _MARK:
            at = whole.rfind(_MARK)
            if at >= 0:
                return whole[at + len(_MARK) :]
        start = self._render(known, opens=False)
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

    def _render(self, messages: Sequence[Message], *, opens: bool) -> str:
        if self._template is None:
            raise TemplateError("this model has no chat template: give text or token ids instead of messages")
        return self._template.render(
            _for_template(messages, self._template), tools=self._tools, add_generation_prompt=opens
        )


def _for_template(messages: Sequence[Message], template: ChatTemplate) -> list[Message]:
    if template.uses("developer"):
        return list(messages)
    return [{**one, "role": "system"} if one.get("role") == "developer" else one for one in messages]


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
        if content is not None and not isinstance(content, str):
            raise TemplateError(f"messages[{at}]: content must be text")
        messages.append({**message, "content": content or ""})
    return messages
