"""Steps of a generation to text completion chunks and answers, with echo, logprobs and several prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extensions.output import GenerationStep, TokenText, Usage
from gateway.generations import Choice, Generations
from gateway.schemas.completions import CompletionRequest
from gateway.translate.chunks import ChunkFrame, encode_json
from gateway.translate.head import Head
from gateway.translate.logprobs import CompletionLogprobs, prompt_logprobs_body
from gateway.translate.usage import usage_body


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """One prompt of a request.

    Attributes:
        text: As the client wrote it; ids are detokenised. Only read by `echo`.
        ids: Its tokens.
        param: The wire's name of it.
    """

    text: str
    ids: list[int]
    param: str

    def echo(self, tokens: Sequence[TokenText]) -> str:
        """The prompt as it is repeated: where its tokens are listed, the text they join to."""
        return b"".join(token.data for token in tokens).decode("utf-8", "replace") if tokens else self.text


class CompletionChunks:
    """Encodes one stream of text completions.

    Args:
        head: Identity of the answer.
        request: What was asked for.
        prompts: For `echo`, and for clients that want token ids.
    """

    def __init__(self, head: Head, request: CompletionRequest, prompts: Sequence[EncodedPrompt]) -> None:
        self._frame = ChunkFrame(head, "text_completion", request.stream_options)
        self._request = request
        self._prompts = prompts
        self._is_plain = request.logprobs is None and not (request.return_token_ids or self._frame.has_running_usage)
        self._prompt_tokens: dict[int, tuple[TokenText, ...]] = {}
        self._logprobs: dict[int, CompletionLogprobs] = {}
        # Choices that have shown the ids of their prompt.
        self._told: set[int] = set()
        # What stands before and after the text of a chunk that has nothing but text.
        self._plain_starts: dict[int, bytes] = {}
        self._plain_end = b',"logprobs":null,"finish_reason":null}' + self._frame.after_choice

    def encode(self, step: GenerationStep, work: Generations) -> bytes:
        """The chunks of one step, framed; with `echo` the first of a choice brings the prompt."""
        index = step.index
        if self._is_plain and step.finish_reason is None and index in self._plain_starts:
            return self._plain(index, step.text) if step.text else b""
        usage = work.usage if self._frame.has_running_usage else None
        number = index // self._request.n
        if step.prompt_tokens is not None:
            self._prompt_tokens[number] = step.prompt_tokens
        frames = []
        if index not in self._plain_starts:
            self._plain_starts[index] = self._frame.before_choice + b'{"index":%d,"text":' % index
            self._logprobs[index] = CompletionLogprobs(as_ids=self._request.return_tokens_as_token_ids)
            if self._request.echo:
                tokens = self._prompt_tokens.get(number, ())
                frames.append(self._content(index, self._prompts[number].echo(tokens), tokens, (), usage))
        if step.text or step.tokens or (self._request.return_token_ids and step.token_ids):
            frames.append(self._content(index, step.text, step.tokens, step.token_ids, usage))
        if step.finish_reason is not None:
            choice = {"index": index, "text": "", "logprobs": None, "finish_reason": step.finish_reason}
            frames.append(self._frame.choice({**choice, "stop_reason": step.stop_reason}, usage))
        return b"".join(frames)

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if the client asked for it."""
        return self._frame.usage(usage)

    def _plain(self, index: int, text: str) -> bytes:
        return self._plain_starts[index] + encode_json(text) + self._plain_end

    def _content(
        self, index: int, text: str, tokens: Sequence[TokenText], token_ids: Sequence[int], usage: Usage | None
    ) -> bytes:
        if self._is_plain:
            return self._plain(index, text)
        wants_logprobs = self._request.logprobs is not None
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs[index].body(tokens) if wants_logprobs else None,
            "finish_reason": None,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = token_ids
            if index not in self._told:
                self._told.add(index)
                choice["prompt_token_ids"] = self._prompts[index // self._request.n].ids
        return self._frame.choice(choice, usage)


def completion_answer(
    head: Head, request: CompletionRequest, choices: Sequence[Choice], usage: Usage, prompts: Sequence[EncodedPrompt]
) -> dict[str, Any]:
    """The whole answer to a request that does not stream. `choices` are all candidates, prompt by prompt."""
    kept = _best(choices, request.num_candidates, request.n)
    bodies = [_choice(request, choice, index, prompts[index // request.n]) for index, choice in enumerate(kept)]
    return head.body("text_completion") | {"choices": bodies, "usage": usage_body(usage)}


def _best(choices: Sequence[Choice], num_candidates: int, n: int) -> list[Choice]:
    """The `n` likeliest of each prompt's candidates, likeliest first; all as they are if there are no more."""
    kept: list[Choice] = []
    for start in range(0, len(choices), num_candidates):
        candidates = list(choices[start : start + num_candidates])
        if num_candidates > n:
            candidates.sort(key=lambda choice: choice.mean_logprob, reverse=True)
        kept += candidates[:n]
    return kept


def _choice(request: CompletionRequest, choice: Choice, index: int, prompt: EncodedPrompt) -> dict[str, Any]:
    text, tokens = choice.text, choice.tokens
    prompt_tokens = choice.prompt_tokens or ()
    if request.echo:
        listed = prompt_tokens if request.logprobs is not None else ()
        text, tokens = prompt.echo(listed) + text, [*listed, *tokens]
    body: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "prompt_logprobs": None,
    }
    if request.logprobs is not None:
        body["logprobs"] = CompletionLogprobs(as_ids=request.return_tokens_as_token_ids).body(tokens)
    if request.prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs_body(prompt_tokens)
    if request.return_token_ids:
        body |= {"token_ids": choice.token_ids, "prompt_token_ids": prompt.ids}
    return body
