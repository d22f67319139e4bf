"""Steps of a generation to chat chunks and chat answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.text.tokenizer import Tokenizer
from extensions.output import GenerationStep, TokenText, Usage
from extensions.parsing.answers import AnswerPlan, AnswerReader
from extensions.parsing.call_ids import new_call_id
from extensions.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning
from extensions.parsing.tokens import ContentTokens, ReasoningTokens
from gateway.generations import Choice, Generations
from gateway.schemas.chat import ChatRequest
from gateway.translate.chunks import ChunkFrame, encode_json
from gateway.translate.head import Head
from gateway.translate.logprobs import chat_logprobs, prompt_logprobs_body
from gateway.translate.usage import usage_body


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatForm:
    """How the answers to one request are written.

    Attributes:
        request: What was asked for.
        plan: How the model's text is read.
        prompt_ids: Reported if the client wants token ids.
        tokenizer: Of the model, to count the tokens of its thinking.
        hidden_ids: Tokens that add nothing to the text.
        reasoning_fields: Names under which the thinking is sent.
    """

    request: ChatRequest
    plan: AnswerPlan
    prompt_ids: list[int]
    tokenizer: Tokenizer
    hidden_ids: frozenset[int] = frozenset()
    reasoning_fields: Sequence[str] = ("reasoning_content", "reasoning")

    def reading(self) -> Reading:
        """The state of one answer."""
        return Reading(
            reader=self.plan.reader(),
            thought=ReasoningTokens(self.tokenizer, self.hidden_ids),
            holds_thought=not self.request.stream_reasoning,
        )

    @property
    def echoed(self) -> str:
        """What the content begins with, before anything that the model writes."""
        last = self.request.messages[-1]
        return last.content or "" if self.request.echo and last.role == "assistant" else ""

    def logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
        """The `logprobs` of content, if asked for."""
        if not self.request.logprobs:
            return None
        return chat_logprobs(tokens, as_ids=self.request.return_tokens_as_token_ids)

    def thought_fields(self, text: str) -> dict[str, str]:
        """The thinking, under each of its names."""
        return dict.fromkeys(self.reasoning_fields, text) if self.request.include_reasoning else {}


@dataclass(kw_only=True, slots=True)
class Reading:
    """How far one answer has been read.

    Attributes:
        reader: Makes parts of its text.
        thought: Counts the tokens of its thinking.
        tokens: Hands out the tokens of its content.
        holds_thought: The thinking is one part, however it comes.
        held: As much of it as has come.
    """

    reader: AnswerReader
    thought: ReasoningTokens
    holds_thought: bool = False
    held: str = ""
    tokens: ContentTokens = field(default_factory=ContentTokens)

    def take(self, text: str, tokens: Iterable[TokenText], ids: Sequence[int], finish_reason: str | None) -> list[Part]:
        """The parts that more of the answer completes."""
        parts = self.reader.feed(text)
        if finish_reason is not None:
            parts += self.reader.end(is_cut=finish_reason == "length")
        self.tokens.add(tokens)
        self.thought.add(ids, parts)
        return self._with_whole_thought(parts, is_last=finish_reason is not None) if self.holds_thought else parts

    def _with_whole_thought(self, parts: list[Part], *, is_last: bool) -> list[Part]:
        """Keeps thinking back until something else comes."""
        released: list[Part] = []
        for part in parts:
            if isinstance(part, Reasoning):
                self.held += part.text
                continue
            released += [*self._release(), part]
        return released + self._release() if is_last else released

    def _release(self) -> list[Part]:
        held, self.held = self.held, ""
        return [Reasoning(held)] if held else []

    def finish_reason(self, reason: str) -> str:
        """What the client is told: an answer that ends by itself and has calls ends with them."""
        return "tool_calls" if reason == "stop" and self.reader.num_calls else reason


class ChatChunks:
    """Encodes one chat stream.

    Args:
        head: Identity of the answer.
        form: How it is written.
    """

    def __init__(self, head: Head, form: ChatForm) -> None:
        request = form.request
        self._frame = ChunkFrame(head, "chat.completion.chunk", request.stream_options)
        self._form = form
        self._readings: dict[int, Reading] = {}
        self._has_told_prompt = False
        self._is_plain = not (request.logprobs or request.return_token_ids)
        # What stands before and after the text of a chunk that has nothing but text, by choices that can have no other.
        self._plain_starts: dict[int, bytes] = {}
        self._choice_end = b'},"logprobs":null,"finish_reason":null}'
        self._plain_end = self._choice_end + self._frame.after_choice

    def encode(self, step: GenerationStep, work: Generations) -> bytes:
        """The chunks of one step, framed; the first of a choice brings its role, the last its finish reason."""
        index = step.index
        start = self._plain_starts.get(index)
        if start is not None and step.finish_reason is None:
            return start + encode_json(step.text) + self._end_of_plain(work) if step.text else b""
        return self._encode(step, work)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the client asked for it."""
        return self._frame.usage(self._with_thought(usage))

    def _end_of_plain(self, work: Generations) -> bytes:
        if not self._frame.has_running_usage:
            return self._plain_end
        return self._choice_end + self._frame.running_usage(self._with_thought(work.usage))

    def _encode(self, step: GenerationStep, work: Generations) -> bytes:
        index = step.index
        reading = self._readings.get(index)
        choices = []
        if reading is None:
            reading = self._readings[index] = self._form.reading()
            choices.append(self._opening(index))
            if self._form.echoed:
                choices.append(self._body(index, {"content": self._form.echoed}))
        parts = reading.take(step.text, step.tokens, step.token_ids, step.finish_reason)
        bodies = self._bodies(index, reading, parts, is_last=step.finish_reason is not None)
        if self._form.request.return_token_ids and step.token_ids:
            bodies = bodies or [self._body(index, {"content": ""})]
            bodies[0]["token_ids"] = step.token_ids
        choices += bodies
        if step.finish_reason is not None:
            ending = self._body(index, {}, finish_reason=reading.finish_reason(step.finish_reason))
            choices.append({**ending, "stop_reason": step.stop_reason})
        elif self._is_plain and reading.reader.is_through:
            self._plain_starts[index] = self._frame.before_choice + b'{"index":%d,"delta":{"content":' % index
        usage = self._with_thought(work.usage) if self._frame.has_running_usage else None
        frames = [self._frame.choice(choice, usage) for choice in choices]
        if self._form.request.return_token_ids and not self._has_told_prompt:
            self._has_told_prompt = True
            frames[0] = self._frame.with_field(frames[0], "prompt_token_ids", self._form.prompt_ids)
        return b"".join(frames)

    def _opening(self, index: int) -> dict[str, Any]:
        return self._body(index, {"role": "assistant", "content": ""})

    def _bodies(self, index: int, reading: Reading, parts: list[Part], *, is_last: bool) -> list[dict[str, Any]]:
        bodies = []
        for part in parts:
            tokens = reading.tokens.take(part)
            delta = self._delta(part)
            if delta:
                body = self._body(index, delta)
                if isinstance(part, Content):
                    body["logprobs"] = self._form.logprobs(tokens)
                bodies.append(body)
        rest = reading.tokens.take_rest() if is_last else []
        if rest and self._form.request.logprobs:
            bodies.append({**self._body(index, {"content": ""}), "logprobs": self._form.logprobs(rest)})
        return bodies

    def _delta(self, part: Part) -> dict[str, Any]:
        """What a client sees of a part; empty if that is nothing."""
        if isinstance(part, Content):
            return {"content": part.text}
        if isinstance(part, Reasoning):
            return dict(self._form.thought_fields(part.text))
        if isinstance(part, CallStart):
            function = {"name": part.name, "arguments": ""}
            call_id = new_call_id(self._form.plan.tool_format)
            return {"tool_calls": [{"index": part.index, "id": call_id, "type": "function", "function": function}]}
        if isinstance(part, CallArguments):
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
        return {}

    @staticmethod
    def _body(index: int, delta: dict[str, Any], *, finish_reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}

    def _with_thought(self, usage: Usage) -> Usage:
        if self._form.plan.thinking is not None:
            usage.num_reasoning_tokens = sum(reading.thought.count for reading in self._readings.values())
        return usage


def chat_answer(head: Head, form: ChatForm, choices: list[Choice], usage: Usage) -> dict[str, Any]:
    """The whole answer to a request that does not stream."""
    request = form.request
    bodies = []
    for choice in choices:
        reading = form.reading()
        bodies.append(_choice(form, choice, reading))
        usage.num_reasoning_tokens += reading.thought.count
    answer = head.body("chat.completion") | {
        "service_tier": "default",
        "choices": bodies,
        "usage": usage_body(usage),
        "prompt_logprobs": None,
    }
    if request.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs_body(choices[0].prompt_tokens or ())
    if request.return_token_ids:
        answer["prompt_token_ids"] = form.prompt_ids
    return answer


def _choice(form: ChatForm, choice: Choice, reading: Reading) -> dict[str, Any]:
    assert choice.finish_reason is not None
    parts = reading.take(choice.text, choice.tokens, choice.token_ids, choice.finish_reason)
    tokens = [token for part in parts for token in reading.tokens.take(part)] + reading.tokens.take_rest()
    body: dict[str, Any] = {
        "index": choice.index,
        "message": _message(form, parts),
        "logprobs": form.logprobs(tokens),
        "finish_reason": reading.finish_reason(choice.finish_reason),
        "stop_reason": choice.stop_reason,
    }
    if form.request.return_token_ids:
        body["token_ids"] = choice.token_ids
    return body


def _message(form: ChatForm, parts: Sequence[Part]) -> dict[str, Any]:
    content = form.echoed + "".join(part.text for part in parts if isinstance(part, Content))
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [_call(form, part, parts) for part in parts if isinstance(part, CallStart)]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if thought:
        message |= form.thought_fields(thought)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(form: ChatForm, start: CallStart, parts: Sequence[Part]) -> dict[str, Any]:
    arguments = "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == start.index)
    function = {"name": start.name, "arguments": arguments}
    return {"id": new_call_id(form.plan.tool_format), "type": "function", "function": function}
