"""One round of an answer whose tools this server runs: the model is asked once, and its calls are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from extensions.output import GenerationStep
from extensions.parsing.call_ids import new_call_id
from extensions.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from gateway.generations import Generations
from gateway.schemas.chat import ChatRequest
from gateway.schemas.messages import FunctionCall, Message, ToolCall
from gateway.schemas.tools import tool_use
from gateway.tools.calls import ServerCall
from gateway.tools.news import CallBegun, CallWritten, News, Said
from gateway.tools.offers import Offers
from gateway.translate.chat import ChatForm, Reading


@dataclass(kw_only=True, slots=True)
class Round:
    """The model's part of a round.

    Attributes:
        work: Of the engine.
        form: How its text is read.
        number: Rounds before this one.
        first_call: Index of its first call among those of the whole answer.
        first_client_call: The same for calls of the client's functions.
        reading: How far it has been read.
        calls: Those for this server, in order.
        num_client_calls: Those for the client.
        finish_reason: Why the text ended.
        stop_reason: The stop string or token that ended it.
    """

    work: Generations
    form: ChatForm
    offers: Offers
    number: int
    first_call: int
    first_client_call: int
    reading: Reading
    calls: list[ServerCall] = field(default_factory=list)
    num_client_calls: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    _by_index: dict[int, ServerCall | int] = field(default_factory=dict)
    _texts: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)

    def read(self, step: GenerationStep) -> list[News]:
        """What a step brings."""
        if step.finish_reason is not None:
            self.finish_reason, self.stop_reason = step.finish_reason, step.stop_reason
        news: list[News] = []
        for part in self.reading.take(step.text, step.tokens, step.token_ids, step.finish_reason):
            tokens = self.reading.tokens.take(part)
            told = self._told(part)
            if isinstance(told, CallBegun | CallWritten):
                news.append(told)
            elif told is not None:
                news.append(Said(told, tokens, self.number))
        if step.finish_reason is not None and (rest := self.reading.tokens.take_rest()):
            news.append(Said(Content(""), rest, self.number))
        return news

    def messages(self) -> list[Message]:
        """What the model wrote in this round as a message of the conversation, and the outcomes of its calls."""
        return turn_messages("".join(self._texts), "".join(self._thoughts), self.calls)

    def _told(self, part: Part) -> Part | CallBegun | CallWritten | None:
        match part:
            case Content(text):
                self._texts.append(text)
            case Reasoning(text):
                self._thoughts.append(text)
            case CallStart(index, name):
                return self._begin_call(index, name)
            case CallArguments(index, text):
                whose = self._by_index[index]
                if isinstance(whose, ServerCall):
                    whose.arguments += text
                    return CallWritten(whose, text)
                return CallArguments(whose, text)
            case _:
                return None
        return part

    def _begin_call(self, index: int, name: str) -> Part | CallBegun:
        offer = self.offers.get(name)
        if offer is None:
            number = self._by_index[index] = self.first_client_call + self.num_client_calls
            self.num_client_calls += 1
            return CallStart(number, name)
        call = ServerCall(
            call_id=new_call_id(self.form.plan.tool_format), offer=offer, index=self.first_call + len(self.calls)
        )
        self._by_index[index] = call
        self.calls.append(call)
        return CallBegun(call)


def turn_messages(text: str, thought: str, calls: Iterable[ServerCall]) -> list[Message]:
    """An assistant's message with calls, and what came of each."""
    calls = list(calls)
    asked = [
        ToolCall(id=call.call_id, function=FunctionCall(name=call.offer.function, arguments=call.arguments or "{}"))
        for call in calls
    ]
    said = Message(role="assistant", content=text or None, reasoning_content=thought or None, tool_calls=asked)
    return [said, *(Message(role="tool", tool_call_id=call.call_id, content=call.told) for call in calls)]


def next_request(chat: ChatRequest, more: Iterable[Message], *, num_tokens: int) -> ChatRequest:
    """The request for the next round.

    Args:
        chat: That of the round before.
        more: Messages that have come since.
        num_tokens: Tokens that the model has written in that round.
    """
    changed: dict[str, Any] = {
        "messages": [*chat.messages, *more],
        "continue_final_message": False,
        "add_generation_prompt": None,
        "echo": False,
        "min_tokens": max(0, chat.min_tokens - num_tokens),
    }
    if chat.asked_tokens is not None:
        changed["max_completion_tokens"] = chat.asked_tokens - num_tokens
    use = tool_use(chat.tool_choice, chat.tools)
    if use.is_forced:
        # A call has been made as demanded; demanded again and again there would be no end.
        changed["tool_choice"] = _allowed(use.names) if not use.names_one else "auto"
    return chat.model_copy(update=changed)


def _allowed(names: Iterable[str]) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": "auto", "tools": tools}
