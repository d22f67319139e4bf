"""Chat and text completions for a program, and what it came to as their answers."""

from __future__ import annotations

from typing import Any, Literal

from extensions.output import GenerationStep, Usage
from extensions.programs.request import ProgramOutcome, ProgramRequest
from gateway.errors import BadRequest
from gateway.programs.work import ProgramWork
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.sampling import StreamOptions
from gateway.schemas.tools import tool_use
from gateway.translate.chunks import ChunkFrame, encode_json
from gateway.translate.head import Head
from gateway.translate.usage import usage_body

Kind = Literal["chat", "text"]


def chat_for_program(body: ChatRequest, model: str) -> ProgramRequest:
    """What a script sees of a chat request.

    Raises:
        BadRequest: `tool_choice` does not go with `tools`.
    """
    return ProgramRequest(
        messages=[turn for message in body.messages for turn in message.turns()],
        model=model,
        tools=[tool.for_template() for tool in tool_use(body.tool_choice, body.tools).tools],
        stream=body.stream,
    )


def text_for_program(body: CompletionRequest, model: str) -> ProgramRequest:
    """What a script sees of a text completion.

    Raises:
        BadRequest: There are several prompts.
    """
    if len(body.prompt) != 1:
        raise BadRequest("A program answers one prompt; send one request for each.", "prompt")
    return ProgramRequest(prompt=body.prompt[0], model=model, stream=body.stream)


class ProgramChunks:
    """Encodes the stream of one program: chunks of text, of what else it tells, and a last one with its outcome.

    Args:
        head: Identity of the answer.
        kind: Of chat or of text completions.
        options: What the client wants to know of usage.
    """

    def __init__(self, head: Head, kind: Kind, options: StreamOptions | None) -> None:
        object_kind = "chat.completion.chunk" if kind == "chat" else "text_completion"
        self._frame = ChunkFrame(head, object_kind, options)
        self._kind = kind
        self._is_chat = kind == "chat"
        self._has_begun = False

    def encode(self, step: GenerationStep, work: ProgramWork) -> bytes:
        """Framed chunks of one step."""
        chunks = [self._chunk({}, work, extension=news) for news in work.take_news()]
        if self._is_chat and not self._has_begun:
            self._has_begun = True
            chunks.insert(0, self._chunk({"role": "assistant", "content": ""}, work))
        if step.text:
            chunks.append(self._chunk({"content": step.text}, work))
        if step.finish_reason is not None:
            chunks += self._ending(work)
        return b"".join(chunks)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the client asked for it."""
        return self._frame.usage(usage)

    def _ending(self, work: ProgramWork) -> list[bytes]:
        outcome = work.outcome
        assert outcome is not None
        chunks = []
        if self._is_chat and outcome.message is not None:
            delta = {name: value for name, value in outcome.message.items() if name not in ("role", "content")}
            if "tool_calls" in delta:
                calls = delta["tool_calls"]
                delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
            if delta:
                chunks.append(self._chunk(delta, work))
        chunks.append(self._chunk({}, work, finish_reason=_finish_reason(outcome, self._kind), extension=work.body()))
        return chunks

    def _chunk(
        self,
        delta: dict[str, Any],
        work: ProgramWork,
        *,
        finish_reason: str | None = None,
        extension: dict[str, Any] | None = None,
    ) -> bytes:
        body = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": finish_reason}
        chunk = self._frame.choice(choice, work.usage)
        if extension is None:
            return chunk
        # The frame ends in `}` and a blank line.
        return chunk[:-3] + b',"extension":' + encode_json(extension) + b"}\n\n"


def program_answer(head: Head, kind: Kind, work: ProgramWork) -> dict[str, Any]:
    """The whole answer of a program that has ended."""
    outcome = work.outcome
    assert outcome is not None
    choice: dict[str, Any] = {"index": 0}
    if kind == "chat":
        more = {key: value for key, value in (outcome.message or {}).items() if key not in ("role", "content")}
        content = outcome.content if outcome.content is not None or more else ""
        choice["message"] = {"role": "assistant", "content": content, "refusal": None, **more}
    else:
        choice |= {"text": outcome.content or "", "prompt_logprobs": None}
    choice |= {"logprobs": None, "finish_reason": _finish_reason(outcome, kind), "stop_reason": None}
    tier = {"service_tier": "default", "prompt_logprobs": None} if kind == "chat" else {}
    return head.body("chat.completion" if kind == "chat" else "text_completion") | {
        **tier,
        "choices": [choice],
        "usage": usage_body(work.usage),
        "extension": work.body(),
    }


def _finish_reason(outcome: ProgramOutcome, kind: Kind) -> str:
    """Texts know no calls."""
    return "stop" if kind == "text" and outcome.finish_reason == "tool_calls" else outcome.finish_reason
