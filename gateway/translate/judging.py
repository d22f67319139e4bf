"""A query and a document to the prompt at whose end a reranker says yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.request import EngineInfo
from engine.text.errors import TemplateError
from engine.text.model import TextModel
from gateway.errors import BadRequest, PromptTooLong
from gateway.schemas.embeddings import PooledFields
from gateway.translate.embeddings import MAX_CONTEXTS, kept
from gateway.translate.prompts import encode_text
from gateway.translate.untrusted import without_special

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What is asked where a request says nothing."""

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


class Pair(NamedTuple):
    """What is judged.

    Attributes:
        query: What is looked for.
        document: Where.
        param: The wire's name for the document.
        query_param: The wire's name for the query.
    """

    query: str
    document: str
    param: str
    query_param: str


class PairReader:
    """Turns pairs into prompts that fit, for one request.

    A chat template with the roles `query` and `document` writes them its own way; behind any other the conversation is
    the one that Qwen3-Reranker was trained with.

    Args:
        text: Of the model.
        info: Of the engine.
        fields: How to cut documents that are too long.
        instruction: What makes a document fit; None for `INSTRUCTION`.
        keep_document: Most tokens of a document.

    Raises:
        BadRequest: The model has no chat template, or a limit is out of range.
    """

    def __init__(
        self,
        text: TextModel,
        info: EngineInfo,
        fields: PooledFields,
        instruction: str | None,
        keep_document: int | None = None,
    ) -> None:
        if text.chat_template is None:
            raise BadRequest("This model has no chat template, so it cannot be asked about documents.", "model")
        self._text = text
        self._template = text.chat_template
        self._has_roles = all(
            text.chat_template.uses(f"'{role}'") or text.chat_template.uses(f'"{role}"')
            for role in ("query", "document")
        )
        self._limit = info.limit_tokens - 1  # the answer needs one
        keep = kept(fields.truncate_prompt_tokens, "truncate_prompt_tokens", info.limit_tokens)
        self._keep = None if keep is None else min(keep, self._limit)
        self._keep_document = kept(keep_document, "max_tokens_per_doc", info.limit_tokens)
        self._side = fields.truncation_side
        self._instruction = self._plain(instruction or INSTRUCTION)

    async def read(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Encodes pairs one after the other.

        Raises:
            BadRequest: One is no text, or the template refuses it; `param` names it.
            PromptTooLong: One is too long and may not be cut.
        """
        return [await self._read(pair) for pair in pairs]

    async def _read(self, pair: Pair) -> list[int]:
        try:
            return await self._encode(pair)
        except PromptTooLong as error:
            if self._is_too_long(pair.query):
                error.param = pair.query_param
            raise

    def _is_too_long(self, query: str) -> bool:
        """Whether no document would fit behind it."""
        tokenizer = self._text.tokenizer
        if tokenizer.cannot_fit(query, self._limit):
            return True
        return len(tokenizer.encode(self._plain(query), add_special=False)) >= self._limit

    async def _encode(self, pair: Pair) -> list[int]:
        query, document = self._plain(pair.query), self._plain(pair.document)
        if self._keep_document is not None:
            document = self._cut(document, self._keep_document)
        ids = await self._prompt(query, document, pair.param)
        if self._keep is not None:
            while (excess := len(ids) - self._keep) > 0:
                size = len(self._text.tokenizer.encode(document, add_special=False)) - excess
                if size < 1:
                    reason = "too few tokens for a query and any of a document"
                    raise BadRequest(f"'truncate_prompt_tokens' leaves {reason}.", "truncate_prompt_tokens")
                document = self._cut(document, size)
                ids = await self._prompt(query, document, pair.param)
        if len(ids) > self._limit:
            raise PromptTooLong(self._limit, len(ids), pair.param)
        return ids

    async def _prompt(self, query: str, document: str, param: str) -> list[int]:
        try:
            prompt = self._template.render(
                self._messages(query, document),
                tools=None,
                add_generation_prompt=True,
                continue_final_message=False,
                enable_thinking=False,
                thinking=False,
            )
        except TemplateError as error:
            raise BadRequest(f"Invalid '{param}': {error.message}", param) from None
        # Text that will be cut may be longer than fits; it has been cut to its own limit, or is a few contexts at most.
        limit = self._limit if self._keep is None else self._limit * MAX_CONTEXTS
        return await encode_text(self._text, prompt, limit, param=param, add_special=False)

    def _messages(self, query: str, document: str) -> list[dict[str, str]]:
        said = f"<Instruct>: {self._instruction}\n<Query>: {query}\n<Document>: {document}"
        asked = {"system": _SYSTEM, "user": said}
        if self._has_roles:
            asked = {"system": self._instruction, "query": query, "document": document}
        return [{"role": role, "content": content} for role, content in asked.items()]

    def _cut(self, text: str, keep: int) -> str:
        tokenizer = self._text.tokenizer
        ids = tokenizer.encode(text, add_special=False)
        if len(ids) <= keep:
            return text
        return tokenizer.decode(ids[:keep] if self._side == "right" else ids[-keep:])

    def _plain(self, text: str) -> str:
        return without_special(text, self._text.tokenizer)
