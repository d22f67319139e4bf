"""Chats whose tools the server runs: what happens on the way as chunks, and the whole as an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extensions.output import GenerationStep, TokenText, Usage
from extensions.parsing.call_ids import new_call_id
from extensions.parsing.parts import CallArguments, CallStart, Content, Reasoning
from gateway.errors import BadRequest
from gateway.generations import Choice
from gateway.schemas.chat import ChatRequest
from gateway.tools.news import CallEnded, CallRunning, News, Said
from gateway.tools.turn import ToolTurn
from gateway.translate.chat import ChatForm
from gateway.translate.chunks import ChunkFrame
from gateway.translate.head import Head
from gateway.translate.usage import usage_body

ROUND_GAP = "\n\n"
"""Between what the model says before its tools have run and what it says after."""


def check_server_tools(body: ChatRequest) -> None:
    """Refuses what does not go with tools that the server runs.

    Raises:
        BadRequest: `param` names the field.
    """
    if body.n != 1:
        raise BadRequest("With 'server_tools' there is one answer: 'n' must be 1.", "n")
    for name in ("return_token_ids", "continue_final_message", "echo"):
        if getattr(body, name):
            raise BadRequest(f"'{name}' does not go with 'server_tools'.", name)
    if body.prompt_logprobs is not None:
        raise BadRequest("'prompt_logprobs' does not go with 'server_tools'.", "prompt_logprobs")


class Gaps:
    """Keeps texts of different rounds apart."""

    def __init__(self) -> None:
        self._last = -1

    def before(self, news: Said) -> str:
        """What comes between the text so far and more of it."""
        assert isinstance(news.part, Content)
        is_new = self._last >= 0 and news.round != self._last
        if news.part.text:
            self._last = news.round
        return ROUND_GAP if is_new and news.part.text else ""


class ServerToolChunks:
    """Encodes one stream.

    Args:
        head: Identity of the answer.
        form: How it is written.
    """

    def __init__(self, head: Head, form: ChatForm) -> None:
        self._frame = ChunkFrame(head, "chat.completion.chunk", form.request.stream_options)
        self._form = form
        self._gaps = Gaps()
        self._has_begun = False

    def encode(self, step: GenerationStep, work: ToolTurn) -> bytes:
        """The chunks of one step, framed."""
        chunks = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk({"role": "assistant", "content": ""}, work))
        for news in work.take_news():
            chunks += self._told(news, work)
        if step.finish_reason is not None:
            choice = {**_choice({}, None, finish_reason(work)), "stop_reason": work.stop_reason}
            chunks.append(self._frame.choice(choice, work.usage))
        return b"".join(chunks)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the client asked for it."""
        return self._frame.usage(usage)

    def _told(self, news: News, work: ToolTurn) -> list[bytes]:
        match news:
            case Said():
                delta = self._delta(news)
                logprobs = self._form.logprobs(news.tokens) if isinstance(news.part, Content) else None
                return [self._chunk(delta, work, logprobs)] if delta else []
            case CallRunning(call) | CallEnded(call):
                chunk = self._chunk({}, work)
                return [self._frame.with_field(chunk, "server_tool_event", call.shown())]
        return []

    def _delta(self, news: Said) -> dict[str, Any]:
        match news.part:
            case Content(text):
                return {"content": self._gaps.before(news) + text}
            case Reasoning(text):
                return dict(self._form.thought_fields(text))
            case CallStart(index, name):
                function = {"name": name, "arguments": ""}
                call_id = new_call_id(self._form.plan.tool_format)
                return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        return {}

    def _chunk(self, delta: dict[str, Any], work: ToolTurn, logprobs: dict[str, Any] | None = None) -> bytes:
        return self._frame.choice(_choice(delta, logprobs, None), work.usage)


def server_tools_answer(head: Head, form: ChatForm, choices: Sequence[Choice], work: ToolTurn) -> dict[str, Any]:
    """The whole answer of a turn that has ended."""
    gaps, said = Gaps(), [news for news in work.take_news() if isinstance(news, Said)]
    content, thought = "", ""
    tokens: list[TokenText] = []
    calls: list[dict[str, Any]] = []
    for news in said:
        match news.part:
            case Content(text):
                content += gaps.before(news) + text
                tokens += news.tokens
            case Reasoning(text):
                thought += text
            case CallStart(_, name):
                function = {"name": name, "arguments": ""}
                call_id = new_call_id(form.plan.tool_format)
                calls.append({"id": call_id, "type": "function", "function": function})
            case CallArguments(index, text):
                calls[index]["function"]["arguments"] += text
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    message |= form.thought_fields(thought) if thought else {}
    message |= {"tool_calls": calls} if calls else {}
    message["server_tool_calls"] = [call.shown() for call in work.calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": form.logprobs(tokens),
        "finish_reason": finish_reason(work),
        "stop_reason": work.stop_reason,
    }
    return head.body("chat.completion") | {
        "service_tier": "default",
        "choices": [choice],
        "usage": usage_body(work.usage),
        "prompt_logprobs": None,
    }


def finish_reason(work: ToolTurn) -> str:
    """What clients are told: they know no limit of calls, so `stop_reason` says that it was one."""
    return "length" if work.finish == "max_tool_calls" else work.finish


def _choice(delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
