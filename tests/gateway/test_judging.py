"""POST /score and /rerank of a model that judges by one word, over a real engine with random weights."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.errors import ModelLoadError
from engine.text.judging import Judgement, load_judgement, named_judgement
from engine.text.model import TextModel
from gateway.app import create_app
from gateway.translate.judging import INSTRUCTION
from tests.fakes import MODEL, make_settings
from tests.gateway.test_embeddings import eventually
from tests.gateway.wire import Body, refused, whole
from tests.tiny_models import write_tiny_model

QUERY = "the capital of France"
DOCUMENTS = ["bread", "Paris, the capital of France", "the capital of Peru <|im_end|>", "bread"]
YES, NO = "1", "2"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
ROLES = (
    "{% for m in messages if m.role == 'query' %}Q {{ m.content }}{% endfor %}"
    "{% for m in messages if m.role == 'document' %} D {{ m.content }}{% endfor %}="
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama", max_position_embeddings=1024)


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    """A real engine that checks its pages whenever it is idle."""
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=128)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@asynccontextmanager
async def served(engine: EngineConnection, directory: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(make_settings(**settings), engine=engine, text=TextModel.load(directory))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60) as client:
        yield client


@pytest.fixture
async def client(engine: EngineConnection, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app that takes the model for a reranker."""
    async with served(engine, directory, reranker=f"{NO},{YES}") as client:
        yield client


def prompt_of(query: str, document: str, instruction: str = INSTRUCTION) -> str:
    """What Qwen3-Reranker is asked, behind the tiny model's template."""
    said = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document.replace('<|im_end|>', ' ')}"
    turns = (("system", SYSTEM), ("user", said))
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


async def expected(client: httpx.AsyncClient, prompt: str) -> float:
    """The probability of yes against no, from the log-probabilities that completions report of either."""
    scores = []
    for word in (YES, NO):
        body = {
            "model": MODEL,
            "prompt": prompt + word,
            "max_tokens": 1,
            "prompt_logprobs": 0,
            "add_special_tokens": False,
        }
        answer = await whole(client, body, "/v1/completions")
        (entry,) = answer["choices"][0]["prompt_logprobs"][-1].values()
        assert entry["decoded_token"] == word
        scores.append(entry["logprob"])
    return 1 / (1 + math.exp(scores[1] - scores[0]))


def rerank(**fields: Any) -> Body:
    return {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **fields}


async def test_documents_are_sorted_by_the_probability_of_yes(client: httpx.AsyncClient, directory: Path) -> None:
    answer = await whole(client, rerank(), "/v2/rerank")
    wanted = [await expected(client, prompt_of(QUERY, document)) for document in DOCUMENTS]
    found = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert [found[at] for at in range(4)] == pytest.approx(wanted, abs=1e-4)
    assert [result["relevance_score"] for result in answer["results"]] == sorted(found.values(), reverse=True)
    assert found[0] == pytest.approx(found[3], abs=1e-4)
    assert abs(found[0] - found[1]) > 1e-3
    tokenizer = TextModel.load(directory).tokenizer
    count = sum(len(tokenizer.encode(prompt_of(QUERY, document), add_special=False)) for document in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    (best,) = (await whole(client, rerank(top_n=1, return_documents=True), "/rerank"))["results"]
    assert best["document"] == {"text": DOCUMENTS[best["index"]]}


async def test_pairs_are_scored_and_an_instruction_changes_what_is_asked(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "text_1": QUERY, "text_2": DOCUMENTS[:2]}
    plain, told = [
        [entry["score"] for entry in (await whole(client, body | more, "/score"))["data"]]
        for more in ({}, {"instruction": "Find food"})
    ]
    assert plain == pytest.approx([await expected(client, prompt_of(QUERY, text)) for text in DOCUMENTS[:2]], abs=1e-4)
    wanted = [await expected(client, prompt_of(QUERY, text, "Find food")) for text in DOCUMENTS[:2]]
    assert told == pytest.approx(wanted, abs=1e-4)
    both = {"text_1": [QUERY, "x"], "text_2": DOCUMENTS[:2]}
    assert (await whole(client, body | both, "/score"))["data"][0]["score"] == pytest.approx(plain[0], abs=1e-4)


async def test_documents_that_are_too_long_are_refused_or_cut(client: httpx.AsyncClient, directory: Path) -> None:
    long = ["bread", "Paris " * 800]
    await refused(client, rerank(documents=long), "/rerank", param="documents[1]")
    await refused(client, rerank(query=long[1]), "/rerank", param="query")
    pairs = {"model": MODEL, "text_1": ["bread", "bread"], "text_2": ["bread", "bread"]}
    await refused(client, pairs | {"text_1": long}, "/score", param="text_1[1]")
    await refused(client, pairs | {"text_2": long}, "/score", param="text_2[1]")
    cut = await whole(client, rerank(documents=long, max_tokens_per_doc=8), "/rerank")
    tokenizer = TextModel.load(directory).tokenizer
    kept = tokenizer.decode(tokenizer.encode(long[1], add_special=False)[:8])
    score = next(result["relevance_score"] for result in cut["results"] if result["index"] == 1)
    assert score == pytest.approx(await expected(client, prompt_of(QUERY, kept)), abs=1e-4)
    whole_prompt = await whole(client, rerank(documents=long[1:], truncate_prompt_tokens=-1), "/rerank")
    assert 900 < whole_prompt["usage"]["prompt_tokens"] < 1024
    await refused(client, rerank(truncate_prompt_tokens=20), "/rerank", param="truncate_prompt_tokens")


async def test_nothing_is_left_behind(client: httpx.AsyncClient, engine: EngineConnection) -> None:
    await whole(client, rerank(documents=["bread"] * 100), "/rerank")
    await eventually(
        lambda: (engine.stats.num_running, engine.stats.num_waiting, engine.stats.num_contexts) == (0, 0, 0)
    )


async def test_a_template_with_roles_for_them_writes_query_and_document_itself(
    engine: EngineConnection, directory: Path, tmp_path: Path
) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"chat_template": ROLES}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((tmp_path / "config.json").read_text()) | {"classifier_from_token": [NO, YES]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    async with served(engine, tmp_path) as client:
        answer = await whole(client, rerank(documents=["bread"]), "/rerank")
        wanted = await expected(client, f"Q {QUERY} D bread=")
    assert answer["results"][0]["relevance_score"] == pytest.approx(wanted, abs=1e-4)


async def test_models_that_compare_embeddings_take_no_instruction(engine: EngineConnection, directory: Path) -> None:
    async with served(engine, directory) as client:
        await refused(client, rerank(instruction="Find food"), "/rerank", param="instruction")
        pair = {"model": MODEL, "text_1": "a", "text_2": "b", "instruction": "Find food"}
        await refused(client, pair, "/score", param="instruction")


@pytest.fixture
def model(directory: Path) -> TextModel:
    return TextModel.load(directory)


def test_a_directory_may_say_which_tokens_mean_yes_and_no(model: TextModel, tmp_path: Path) -> None:
    assert load_judgement(tmp_path, model.tokenizer) is None
    yes, no = (model.tokenizer.encode(word, add_special=False)[0] for word in (YES, NO))
    (tmp_path / "config.json").write_text(json.dumps({"classifier_from_token": [NO, YES]}))
    assert load_judgement(tmp_path, model.tokenizer) == Judgement(no=no, yes=yes)
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "y.logit_score.LogitScore"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_LogitScore").mkdir()
    score = tmp_path / "1_LogitScore" / "config.json"
    score.write_text(json.dumps({"true_token_id": 7, "false_token_id": 9}))
    assert load_judgement(tmp_path, model.tokenizer) == Judgement(no=9, yes=7)
    for damaged in ('{"true_token_id": 7, "false_token_id": null}', "{", "[]"):
        score.write_text(damaged)
        with pytest.raises(ModelLoadError):
            load_judgement(tmp_path, model.tokenizer)


@pytest.mark.parametrize(("no", "yes"), [("certainly not so", YES), (YES, YES)])
def test_words_that_are_not_two_tokens_are_refused(model: TextModel, no: str, yes: str) -> None:
    with pytest.raises(ModelLoadError):
        named_judgement(no, yes, model.tokenizer)
