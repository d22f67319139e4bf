"""Steps of a generation to chat chunks and chat answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extensions.output import GenerationStep, TokenText, Usage
from gateway.generations import Choice, Generations
from gateway.schemas.chat import ChatRequest
from gateway.translate.chunks import ChunkFrame, encode_json
from gateway.translate.head import Head
from gateway.translate.logprobs import chat_logprobs, prompt_logprobs_body
from gateway.translate.usage import usage_body


class ChatChunks:
    """Encodes one chat stream.

    Args:
        head: Identity of the answer.
        request: What was asked for.
        prompt_ids: Reported once a choice if the client wants token ids.
    """

    def __init__(self, head: Head, request: ChatRequest, prompt_ids: list[int]) -> None:
        self._frame = ChunkFrame(head, "chat.completion.chunk", request.stream_options)
        self._request = request
        self._prompt_ids = prompt_ids
        self._is_plain = not (request.logprobs or request.return_token_ids or self._frame.has_running_usage)
        # What stands before and after the text of a chunk that has nothing but text.
        self._plain_starts: dict[int, bytes] = {}
        self._plain_end = b'},"logprobs":null,"finish_reason":null}' + self._frame.after_choice

    def encode(self, step: GenerationStep, work: Generations) -> bytes:
        """The chunks of one step, framed; the first of a choice brings its role, the last its finish reason."""
        index = step.index
        if self._is_plain and step.finish_reason is None and index in self._plain_starts:
            return self._plain(index, step.text) if step.text else b""
        usage = work.usage if self._frame.has_running_usage else None
        frames = [] if index in self._plain_starts else [self._open(index, usage)]
        if step.text or step.tokens or (self._request.return_token_ids and step.token_ids):
            frames.append(self._content(index, step, usage))
        if step.finish_reason is not None:
            choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": step.finish_reason}
            frames.append(self._frame.choice({**choice, "stop_reason": step.stop_reason}, usage))
        return b"".join(frames)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the client asked for it."""
        return self._frame.usage(usage)

    def _open(self, index: int, usage: Usage | None) -> bytes:
        self._plain_starts[index] = self._frame.before_choice + b'{"index":%d,"delta":{"content":' % index
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if self._request.return_token_ids:
            choice["prompt_token_ids"] = self._prompt_ids
        return self._frame.choice(choice, usage)

    def _plain(self, index: int, text: str) -> bytes:
        return self._plain_starts[index] + encode_json(text) + self._plain_end

    def _content(self, index: int, step: GenerationStep, usage: Usage | None) -> bytes:
        if self._is_plain:
            return self._plain(index, step.text)
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": step.text},
            "logprobs": _logprobs(self._request, step.tokens),
            "finish_reason": None,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = step.token_ids
        return self._frame.choice(choice, usage)


def chat_answer(
    head: Head, request: ChatRequest, choices: list[Choice], usage: Usage, prompt_ids: list[int]
) -> dict[str, Any]:
    """The whole answer to a request that does not stream."""
    answer = head.body("chat.completion") | {
        "service_tier": "default",
        "choices": [_choice(request, choice) for choice in choices],
        "usage": usage_body(usage),
    }
    if request.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs_body(choices[0].prompt_tokens or ())
    if request.return_token_ids:
        answer["prompt_token_ids"] = prompt_ids
    return answer


def _choice(request: ChatRequest, choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": _logprobs(request, choice.tokens),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if request.return_token_ids:
        body["token_ids"] = choice.token_ids
    return body


def _logprobs(request: ChatRequest, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
    if not request.logprobs:
        return None
    return chat_logprobs(tokens, as_ids=request.return_tokens_as_token_ids)
