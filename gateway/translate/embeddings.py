"""Embedding requests to prompts, and embeddings to the answers of /v1/embeddings, /score and /rerank."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from engine.request import EngineInfo
from engine.text.model import TextModel
from gateway.errors import BadRequest, PromptTooLong
from gateway.schemas.completions import Prompt
from gateway.schemas.embeddings import PooledFields, RerankRequest
from gateway.translate.head import Head
from gateway.translate.prompts import INLINE_CHARS, check_ids, encode_text

MAX_CONTEXTS = 16
"""Text of more than this many contexts is not tokenised just to be cut."""


class InputReader:
    """Turns texts and token ids into prompts that fit, for one request.

    Args:
        text: Of the model.
        info: Of the engine.
        fields: How to cut what is too long.
        add_special: Put the tokenizer's opening and closing tokens around a text.
    """

    def __init__(self, text: TextModel, info: EngineInfo, fields: PooledFields, *, add_special: bool = True) -> None:
        self._text = text
        self._limit_tokens = info.limit_tokens
        self._vocab_size = info.vocab_size
        self._side = fields.truncation_side
        self._keep = kept(fields.truncate_prompt_tokens, "truncate_prompt_tokens", info.limit_tokens)
        self._adds_special = add_special

    async def read(
        self, inputs: Sequence[Prompt], param: str, *, is_list: bool, keep: tuple[str, int | None] | None = None
    ) -> list[list[int]]:
        """Encodes inputs one after the other; other requests get their turn between long ones.

        Args:
            inputs: Texts or token ids.
            param: The wire's name for them.
            is_list: The client sent a list, so that errors name its place.
            keep: Name and value of a narrower limit of tokens.

        Raises:
            BadRequest: One is no text, has no tokens, or an id is not in the vocabulary; `param` names it.
            PromptTooLong: One is too long and may not be cut.
        """
        most = self._keep if keep is None or keep[1] is None else kept(keep[1], keep[0], self._limit_tokens)
        prompts = []
        num_chars = 0
        for position, one in enumerate(inputs):
            prompts.append(await self._encode(one, f"{param}[{position}]" if is_list else param, most))
            num_chars += len(one)
            if num_chars > INLINE_CHARS:
                num_chars = 0
                await asyncio.sleep(0)
        return prompts

    async def _encode(self, one: Prompt, param: str, keep: int | None) -> list[int]:
        if not isinstance(one, str):
            check_ids(one, self._vocab_size, param)
            return self._fit(one, (), param, keep)
        closing = self._text.tokenizer.closing_ids if self._adds_special else ()
        limit = self._limit_tokens if keep is None else self._limit_tokens * MAX_CONTEXTS
        ids = await encode_text(self._text, one, limit, param=param, add_special=self._adds_special)
        if not ids:
            raise BadRequest(f"Invalid '{param}': it has no tokens.", param)
        return self._fit(ids, closing, param, keep)

    def _fit(self, ids: list[int], closing: tuple[int, ...], param: str, keep: int | None) -> list[int]:
        """The ids with the closing ones, cut to `keep`; the closing ones are never cut off."""
        if keep is not None and len(ids) + len(closing) > keep:
            room = max(keep - len(closing), 0)
            ids = ids[:room] if self._side == "right" else ids[len(ids) - room :]
            closing = closing[:keep]
        ids = [*ids, *closing]
        if len(ids) > self._limit_tokens:
            raise PromptTooLong(self._limit_tokens, len(ids), param)
        return ids


def kept(keep: int | None, param: str, limit_tokens: int) -> int | None:
    """Tokens that are kept of a text; None for all."""
    if keep is None:
        return None
    if keep == -1:
        return limit_tokens
    if not 1 <= keep <= limit_tokens:
        raise BadRequest(f"'{param}' must be between 1 and {limit_tokens}, the model's context, or -1.", param)
    return keep


def usage_of(prompts: Sequence[Sequence[int]]) -> dict[str, int]:
    """The `usage` object: nothing is generated."""
    num_tokens = sum(map(len, prompts))
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def embeddings_answer(model: str, values: Sequence[Any], usage: Mapping[str, int]) -> dict[str, Any]:
    """OpenAI's list of embeddings; `values` are JSON already."""
    data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(values)]
    return {"object": "list", "data": data, "model": model, "usage": usage}


def score_answer(head: Head, scores: Sequence[float], usage: Mapping[str, int]) -> dict[str, Any]:
    """vLLM's list of scores."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return head.body("list") | {"data": data, "usage": usage}


def ranked(body: RerankRequest, scores: Sequence[float], *, returns_documents: bool) -> list[dict[str, Any]]:
    """The results, best first; equally good ones in their own order."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    results: list[dict[str, Any]] = []
    for index in order[: body.top_n or None]:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if returns_documents:
            result["document"] = {"text": body.documents[index]}
        results.append(result)
    return results


def rerank_answer(head: Head, results: Sequence[Any], usage: Mapping[str, int]) -> dict[str, Any]:
    """What Jina, Cohere and vLLM agree on, with each one's own account of the tokens."""
    meta = {"tokens": {"input_tokens": usage["prompt_tokens"], "output_tokens": 0}}
    return {"id": head.id, "model": head.model, "results": results, "usage": usage, "meta": meta}
