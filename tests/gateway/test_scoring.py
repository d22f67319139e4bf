"""POST /score and /rerank over a scripted engine whose embedding of a prompt is known."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from engine.text.model import TextModel
from tests.fakes import MODEL, ScriptedEngine, embedding_of
from tests.gateway.wire import Body, refused, whole

SCORE_PATHS = ["/score", "/v1/score"]
RERANK_PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
QUERY = "the capital of France"
DOCUMENTS = ["bread", "Paris, the capital of France", "the capital of Peru", "bread"]


def cosine(model: TextModel, first: str, second: str) -> float:
    """How near the scripted embeddings of two texts are."""
    one, other = (
        embedding_of(model.tokenizer.encode(text, add_special=True)).astype(float) for text in (first, second)
    )
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def num_tokens(model: TextModel, *texts: str) -> int:
    return sum(len(model.tokenizer.encode(text, add_special=True)) for text in texts)


def score(**fields: Any) -> Body:
    return {"model": MODEL, "text_1": "one", "text_2": "two", **fields}


def rerank(**fields: Any) -> Body:
    return {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **fields}


@pytest.mark.parametrize("path", SCORE_PATHS)
@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("one", "two", [("one", "two")]),
        ("one", ["two", "three"], [("one", "two"), ("one", "three")]),
        (["one", "three"], ["two", "one"], [("one", "two"), ("three", "one")]),
        (["one"], ["one", "two"], [("one", "one"), ("one", "two")]),
    ],
)
async def test_scores_are_the_cosines_of_the_pairs(
    client: httpx.AsyncClient, model: TextModel, path: str, first: Any, second: Any, pairs: list[tuple[str, str]]
) -> None:
    answer = await whole(client, score(text_1=first, text_2=second), path)
    assert answer["object"] == "list"
    assert answer["model"] == MODEL
    assert answer["id"].startswith("score-")
    assert [entry["index"] for entry in answer["data"]] == list(range(len(pairs)))
    assert all(entry["object"] == "score" for entry in answer["data"])
    assert [entry["score"] for entry in answer["data"]] == pytest.approx([cosine(model, *pair) for pair in pairs])
    firsts = [first] if isinstance(first, str) else first
    seconds = [second] if isinstance(second, str) else second
    count = num_tokens(model, *firsts, *seconds)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}


async def test_a_text_is_as_near_as_can_be_to_itself(client: httpx.AsyncClient) -> None:
    answer = await whole(client, score(text_1="same", text_2=["same"]), "/score")
    assert answer["data"][0]["score"] == pytest.approx(1.0)
    assert answer["data"][0]["score"] <= 1.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text_1": None}, "text_1"),
        ({"text_2": None}, "text_2"),
        ({"text_1": 5}, "text_1"),
        ({"text_1": [5]}, "text_1[0]"),
        ({"text_1": []}, "text_1"),
        ({"text_2": []}, "text_2"),
        ({"text_1": ""}, "text_1"),
        ({"text_2": ["a", ""]}, "text_2[1]"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ({"text_2": ["a"] * 2049}, "text_2"),
        ({"text_2": ["a", "word " * 5000]}, "text_2[1]"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
async def test_bad_pairs_are_refused_by_name_before_any_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    await refused(client, score(**fields), "/score", param=param)
    assert not engine.requests


@pytest.mark.parametrize("path", RERANK_PATHS)
async def test_documents_are_sorted_by_their_nearness_to_the_query(
    client: httpx.AsyncClient, model: TextModel, path: str
) -> None:
    answer = await whole(client, rerank(), path)
    wanted = [cosine(model, QUERY, document) for document in DOCUMENTS]
    order = sorted(range(4), key=lambda index: -wanted[index])
    assert [result["index"] for result in answer["results"]] == order
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx([wanted[at] for at in order])
    assert order.index(0) < order.index(3), "equal documents keep their order"
    assert answer["id"].startswith("rerank-")
    count = num_tokens(model, QUERY, *DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert answer["meta"]["tokens"] == {"input_tokens": count, "output_tokens": 0}


@pytest.mark.parametrize("path", RERANK_PATHS)
async def test_texts_come_back_as_each_api_has_it_and_as_the_client_says(client: httpx.AsyncClient, path: str) -> None:
    by_default = await whole(client, rerank(), path)
    assert all(("document" in result) == (path != "/v2/rerank") for result in by_default["results"])
    given = await whole(client, rerank(return_documents=True), path)
    assert [result["document"] for result in given["results"]] == [
        {"text": DOCUMENTS[result["index"]]} for result in given["results"]
    ]
    bare = await whole(client, rerank(return_documents=False), path)
    assert all(result.keys() == {"index", "relevance_score"} for result in bare["results"])


async def test_documents_may_be_objects_with_a_text(client: httpx.AsyncClient) -> None:
    objects = [{"text": text, "title": "ignored"} for text in DOCUMENTS]
    plain, wrapped = await whole(client, rerank(), "/rerank"), await whole(client, rerank(documents=objects), "/rerank")
    assert plain["results"] == wrapped["results"]
    ranked_by_text = await whole(client, rerank(documents=objects, rank_fields=["text"]), "/v1/rerank")
    assert ranked_by_text["results"] == plain["results"]


@pytest.mark.parametrize(("top_n", "count"), [(0, 4), (1, 1), (3, 3), (4, 4), (99, 4), (None, 4)])
async def test_top_n_keeps_the_nearest(client: httpx.AsyncClient, top_n: int | None, count: int) -> None:
    everything = await whole(client, rerank(), "/rerank")
    answer = await whole(client, rerank(top_n=top_n), "/rerank")
    assert answer["results"] == everything["results"][:count]


async def test_long_documents_are_cut_where_that_is_asked_for(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    text = "word " * 20
    await whole(client, rerank(documents=[text], max_tokens_per_doc=5), "/v2/rerank")
    ids = model.tokenizer.encode(text, add_special=True)
    assert sorted(request.prompt_ids for request in engine.requests) == sorted(
        [model.tokenizer.encode(QUERY, add_special=True), ids[:5]]
    )
    engine.requests.clear()
    await whole(client, rerank(documents=[text], truncate_prompt_tokens=7), "/rerank")
    assert ids[:7] in [request.prompt_ids for request in engine.requests]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"query": "word " * 5000}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "text"}, "documents"),
        ({"documents": ["a", 5]}, "documents[1]"),
        ({"documents": ["a", None]}, "documents[1]"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": [{"title": "a"}]}, "documents[0].text"),
        ({"documents": [{"text": ""}]}, "documents[0].text"),
        ({"documents": [{"text": 5}]}, "documents[0].text"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a", "word " * 5000]}, "documents[1]"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "2"}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ({"max_tokens_per_doc": 4097}, "max_tokens_per_doc"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"max_chunks_per_doc": 10}, "max_chunks_per_doc"),
    ],
)
async def test_a_bad_ranking_is_refused_by_name_before_any_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    await refused(client, rerank(**fields), "/rerank", param=param)
    assert not engine.requests
