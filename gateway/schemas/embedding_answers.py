"""What is answered to requests for embeddings, scores and rankings: for the API's description alone."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on


class PromptUsage(TypedDict):
    """Tokens counted; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One text's vector: numbers, or little-endian float32 values in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    """Vectors in the order of the input."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class Score(TypedDict):
    """How near two texts are: the cosine of their embeddings, -1 to 1."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(TypedDict):
    """Scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    system_fingerprint: str
    data: list[Score]
    usage: PromptUsage


class RankedText(TypedDict):
    """A document as it was sent."""

    text: str


class RankedDocument(TypedDict):
    """A document's place in the request, and how near it is to the query."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class RankedTokens(TypedDict):
    """Tokens counted, as Cohere names them."""

    input_tokens: int
    output_tokens: int


class RankingMeta(TypedDict):
    """What Cohere tells beside the results."""

    tokens: RankedTokens


class Ranking(TypedDict):
    """Documents, nearest first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage
    meta: RankingMeta
