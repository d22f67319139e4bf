"""POST /v1/embeddings, /score and /rerank: a prompt's hidden states as a vector, vectors compared, texts judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.request import EngineInfo
from extensions.embedding import Embedding
from gateway.embeddings import Take, embed_all, judge_all
from gateway.errors import BadRequest
from gateway.openapi import takes
from gateway.routes.answering import json_response
from gateway.routes.owning import payer_of
from gateway.schemas.embeddings import EmbeddingRequest, PooledFields, RerankRequest, ScoreRequest
from gateway.services import Services, ServicesDep, read_body
from gateway.sse import unless_disconnected
from gateway.translate.embeddings import (
    InputReader,
    embeddings_answer,
    ranked,
    rerank_answer,
    score_answer,
    usage_of,
)
from gateway.translate.head import Head
from gateway.translate.judging import Pair, PairReader
from gateway.translate.vectors import Vector, cosine, shaped, written

router = APIRouter()

Scored = tuple[list[float], dict[str, int]]
"""Scores, and the `usage` object."""


@router.post("/v1/embeddings", openapi_extra=takes(EmbeddingRequest))
async def create_embeddings(request: Request, services: ServicesDep) -> Response:
    """Embeds one or several texts."""
    body = await read_body(request, EmbeddingRequest)
    model = services.models.resolve(body.model)
    _check_count(len(body.input), services, "input")
    info = await services.engine_info()
    _check_dimensions(body.dimensions, info)
    normalize = services.settings.normalize_embeddings if body.normalize is None else body.normalize
    reader = InputReader(services.runtime.text, info, body, add_special=body.add_special_tokens)
    prompts = await reader.read(body.input, "input", is_list=len(body.input) > 1)
    values: list[Any] = [None] * len(prompts)

    def take(place: int, embedding: Embedding) -> None:
        # Written as they come: the JSON of thousands at once would keep other requests waiting.
        kept = shaped(embedding.values, body.dimensions, normalize=normalize)
        values[place] = written(kept, body.encoding_format)

    await _embed(request, services, body, prompts, take, model)
    return json_response(embeddings_answer(model, values, usage_of(prompts)))


@router.post("/score", openapi_extra=takes(ScoreRequest))
@router.post("/v1/score", openapi_extra=takes(ScoreRequest))
async def create_scores(request: Request, services: ServicesDep) -> Response:
    """Compares texts with others: the cosine of their embeddings, or what a reranker says."""
    body = await read_body(request, ScoreRequest)
    model = services.models.resolve(body.model)
    _check_count(len(body.text_1), services, "text_1")
    _check_count(len(body.text_2), services, "text_2")
    info = await services.engine_info()
    if services.runtime.judgement is None:
        scores, usage = await _compare(request, services, body, info, model)
    else:
        firsts = body.text_1 * len(body.text_2) if len(body.text_1) == 1 else body.text_1
        pairs = [
            Pair(one, other, _place("text_2", body.text_2, at), _place("text_1", body.text_1, at))
            for at, (one, other) in enumerate(zip(firsts, body.text_2, strict=True))
        ]
        reader = PairReader(services.runtime.text, info, body, body.instruction)
        scores, usage = await _judge(request, services, body, pairs, model, reader)
    head = Head.new("score", model=model, fingerprint=info.fingerprint)
    return json_response(score_answer(head, scores, usage))


@router.post("/rerank", openapi_extra=takes(RerankRequest))
@router.post("/v1/rerank", openapi_extra=takes(RerankRequest))
async def rerank(request: Request, services: ServicesDep) -> Response:
    """Sorts documents by how well they fit a query; gives their texts back unless told not to, as Jina does."""
    return await _rerank(request, services, returns_documents=True)


@router.post("/v2/rerank", openapi_extra=takes(RerankRequest))
async def rerank_as_cohere(request: Request, services: ServicesDep) -> Response:
    """The same, without the texts unless asked for, as Cohere does."""
    return await _rerank(request, services, returns_documents=False)


async def _rerank(request: Request, services: Services, *, returns_documents: bool) -> Response:
    body = await read_body(request, RerankRequest)
    model = services.models.resolve(body.model)
    _check_count(len(body.documents), services, "documents")
    info = await services.engine_info()
    if services.runtime.judgement is None:
        scores, usage = await _compare_documents(request, services, body, info, model)
    else:
        pairs = [Pair(body.query, text, f"documents[{at}]", "query") for at, text in enumerate(body.documents)]
        reader = PairReader(services.runtime.text, info, body, body.instruction, body.max_tokens_per_doc)
        scores, usage = await _judge(request, services, body, pairs, model, reader)
    if body.return_documents is not None:
        returns_documents = body.return_documents
    results = ranked(body, scores, returns_documents=returns_documents)
    head = Head.new("rerank", model=model, fingerprint=info.fingerprint)
    return json_response(rerank_answer(head, results, usage))


async def _compare(request: Request, services: Services, body: ScoreRequest, info: EngineInfo, model: str) -> Scored:
    """Cosines of the embeddings of pairs."""
    _check_instruction(body.instruction)
    reader = InputReader(services.runtime.text, info, body)
    first = await reader.read(body.text_1, "text_1", is_list=len(body.text_1) > 1)
    second = await reader.read(body.text_2, "text_2", is_list=len(body.text_2) > 1)
    vectors = await _vectors(request, services, body, [*first, *second], model)
    firsts, seconds = vectors[: len(first)], vectors[len(first) :]
    if len(firsts) == 1:
        firsts *= len(seconds)
    scores = [cosine(one, other) for one, other in zip(firsts, seconds, strict=True)]
    return scores, usage_of([*first, *second])


async def _compare_documents(
    request: Request, services: Services, body: RerankRequest, info: EngineInfo, model: str
) -> Scored:
    """Cosines of the embeddings of documents and that of the query."""
    _check_instruction(body.instruction)
    reader = InputReader(services.runtime.text, info, body)
    query = await reader.read([body.query], "query", is_list=False)
    keep = ("max_tokens_per_doc", body.max_tokens_per_doc)
    documents = await reader.read(body.documents, "documents", is_list=True, keep=keep)
    vectors = await _vectors(request, services, body, [*query, *documents], model)
    return [cosine(vectors[0], document) for document in vectors[1:]], usage_of([*query, *documents])


async def _judge(
    request: Request, services: Services, body: PooledFields, pairs: Sequence[Pair], model: str, reader: PairReader
) -> Scored:
    """How likely a reranker says yes to each pair, for as long as the client stays."""
    judgement = services.runtime.judgement
    assert judgement is not None
    prompts = await reader.read(pairs)
    work = judge_all(
        services.runtime,
        prompts,
        judgement,
        payer=payer_of(request, services, body.cache_salt),
        model=model,
        priority=body.priority,
        metrics=services.metrics,
    )
    return await unless_disconnected(request.receive, work), usage_of(prompts)


def _place(name: str, texts: Sequence[str], at: int) -> str:
    """What the client calls one of its texts; one alone has no number."""
    return f"{name}[{at}]" if len(texts) > 1 else name


def _check_instruction(instruction: str | None) -> None:
    if instruction is not None:
        reason = "this model compares embeddings; only rerankers take an instruction"
        raise BadRequest(f"Invalid 'instruction': {reason}.", "instruction")


async def _vectors(
    request: Request, services: Services, body: PooledFields, prompts: Sequence[Sequence[int]], model: str
) -> list[Vector]:
    """Every prompt's embedding."""
    vectors: dict[int, Vector] = {}

    def take(place: int, embedding: Embedding) -> None:
        vectors[place] = embedding.values

    await _embed(request, services, body, prompts, take, model)
    return [vectors[place] for place in range(len(prompts))]


async def _embed(
    request: Request,
    services: Services,
    body: PooledFields,
    prompts: Sequence[Sequence[int]],
    take: Take,
    model: str,
) -> None:
    """Embeds every prompt, for as long as the client stays."""
    work = embed_all(
        services.runtime,
        prompts,
        take,
        payer=payer_of(request, services, body.cache_salt),
        model=model,
        priority=body.priority,
        metrics=services.metrics,
    )
    await unless_disconnected(request.receive, work)


def _check_count(count: int, services: Services, param: str) -> None:
    most = services.settings.max_embedding_inputs
    if count > most:
        raise BadRequest(f"'{param}' has more than {most} entries.", param, "array_above_max_length")


def _check_dimensions(dimensions: int | None, info: EngineInfo) -> None:
    if dimensions is not None and dimensions > info.hidden_size:
        reason = f"it must be at most {info.hidden_size}, the width of the model"
        raise BadRequest(f"Invalid 'dimensions': {reason}, got {dimensions}.", "dimensions")
