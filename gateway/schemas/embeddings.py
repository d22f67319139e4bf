"""Bodies of POST /v1/embeddings, /score and /rerank: OpenAI's, vLLM's, Jina's and Cohere's shapes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import INT64_MAX, Count, Int64, PositiveCount, StringList, WireModel
from gateway.schemas.completions import AnyPrompt, Prompt, as_prompts


def _as_inputs(value: object) -> list[Prompt]:
    """Turns the four forms of `input` into a list; none of it may be empty."""
    inputs = as_prompts(value)
    for position, one in enumerate(inputs):
        if not one:
            at = f"[{position}]" if isinstance(value, list) else ""
            raise PydanticCustomError("empty", "it must not be empty", {"at": at})
    return inputs


def _check_documents(value: object) -> object:
    """Lets strings and objects with a `text` pass; says which document is neither."""
    if not isinstance(value, list):
        raise PydanticCustomError("documents_type", "it must be a list of strings or of objects with a 'text'")
    if not value:
        raise PydanticCustomError("empty", "it must not be empty")
    return [_document_text(document, position) for position, document in enumerate(value)]


def _document_text(document: object, position: int) -> str:
    at = f"[{position}]"
    if isinstance(document, dict):
        document, at = document.get("text"), f"{at}.text"
    if not isinstance(document, str):
        raise PydanticCustomError("document_type", "it must be a string", {"at": at})
    if not document:
        raise PydanticCustomError("empty", "it must not be empty", {"at": at})
    return document


Document = dict[str, object]
Documents = Annotated[list[str], BeforeValidator(_check_documents, json_schema_input_type=list[str | Document])]
"""Texts, as strings or as objects with a `text`."""

Text = Annotated[str, Field(min_length=1)]


class PooledFields(WireModel):
    """What all requests for embeddings share.

    Attributes:
        model: Name of a served model; the only one if omitted.
        truncate_prompt_tokens: Keep this many tokens of a longer text; -1 keeps what fits.
        truncation_side: Where a longer text is cut.
        cache_salt: Prefix pages are shared only with requests of the same salt.
        priority: Lower starts sooner.
        request_id: Accepted as a label; never the key of anything.
        user: Accepted, without effect.
    """

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] = "right"
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    priority: Int64 = 0
    request_id: str | None = None
    user: str | None = None


class EmbeddingRequest(PooledFields):
    """Texts, or token ids, to embed.

    Attributes:
        input: One or several.
        encoding_format: Lists of numbers, or little-endian float32 values in base64.
        dimensions: Keep this many leading values of each embedding.
        normalize: Scale each embedding to length 1; what the server is set to if omitted.
        add_special_tokens: Put the tokenizer's opening and closing tokens around a text.
    """

    unsupported: ClassVar = {"embed_dtype": ("float32",), "endianness": ("native", "little")}

    input: Annotated[list[Prompt], BeforeValidator(_as_inputs, json_schema_input_type=AnyPrompt)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: PositiveCount | None = None
    normalize: bool | None = None
    add_special_tokens: bool = True


class ScoreRequest(PooledFields):
    """Pairs of texts to compare.

    Attributes:
        text_1: One text, or as many as `text_2` has.
        text_2: One text or several.
        instruction: What a reranker is to look for; models that compare embeddings take none.
    """

    text_1: StringList
    text_2: StringList
    instruction: Text | None = None

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        for name, texts in (("text_1", self.text_1), ("text_2", self.text_2)):
            if not texts:
                raise PydanticCustomError("empty", "it must not be empty", {"at": name})
            if "" in texts:
                at = f"{name}[{texts.index('')}]" if len(texts) > 1 else name
                raise PydanticCustomError("empty", "it must not be empty", {"at": at})
        if len(self.text_1) not in (1, len(self.text_2)):
            reason = "it must be one text, or as many as 'text_2' has"
            raise PydanticCustomError("length", reason, {"at": "text_1"})
        return self


class RerankRequest(PooledFields):
    """Documents to sort by how near they are to a query.

    Attributes:
        query: What is looked for.
        documents: Where.
        top_n: Most results; 0 gives all.
        return_documents: Give the texts back; the endpoint's own habit if omitted.
        max_tokens_per_doc: Keep this many tokens of a longer document.
        instruction: What a reranker is to look for; models that compare embeddings take none.
    """

    unsupported: ClassVar = {"rank_fields": (["text"],), "max_chunks_per_doc": (1,)}

    query: Text
    documents: Documents
    top_n: Count = 0
    return_documents: bool | None = None
    max_tokens_per_doc: PositiveCount | None = None
    instruction: Text | None = None
