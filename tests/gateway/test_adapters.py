"""Adapters as clients meet them: models of their own names, in plain requests, embeddings and programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from engine.build import build_loop
from engine.config import AdapterSource, EngineConfig, KVConfig
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from gateway.models import ServedModels
from gateway.settings import Settings
from tests.fakes import MODEL, make_settings
from tests.gateway.wire import chat, error_of, refused, text, whole
from tests.tiny_adapters import write_merged_model, write_tiny_adapter
from tests.tiny_models import write_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, an adapter `poet` beside it, and the plain model that both make, in one directory."""
    directory = tmp_path_factory.mktemp("models")
    model = write_tiny_model(directory / "tiny", "llama")
    adapter = write_tiny_adapter(directory / "poet", model, "lora")
    write_tiny_adapter(directory / "critic", model, "ia3")
    write_merged_model(directory / "merged", model, adapter)
    return directory


@asynccontextmanager
async def serving(model: Path, *adapters: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app over a real engine in float32 that checks its pages whenever it is idle."""
    sources = tuple(AdapterSource(name=path.name, path=str(path)) for path in adapters)
    config = EngineConfig(
        model=str(model),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=64),
        adapters=sources,
    )
    settings = make_settings(adapters=tuple(f"{one.name}={one.path}" for one in sources))
    async with open_engine(build_loop(config)) as engine:
        app = create_app(settings, engine=engine, text=TextModel.load(model))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:
            yield client
        await app.state.services.aclose()


@pytest.fixture
async def client(directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(directory / "tiny", directory / "poet", directory / "critic") as client:
        yield client


GREEDY = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}


async def test_each_adapter_is_listed_as_a_model_with_its_parent(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(one["id"], one["parent"], one["root"]) for one in listed] == [
        (MODEL, None, MODEL),
        ("poet", MODEL, "poet"),
        ("critic", MODEL, "critic"),
    ]
    assert (await client.get("/v1/models/poet")).json() == listed[1]
    assert error_of(await client.get("/v1/models/painter"), 404)["code"] == "model_not_found"


async def test_a_request_that_names_an_adapter_is_answered_by_the_model_it_makes(
    client: httpx.AsyncClient, directory: Path
) -> None:
    plain = await whole(client, chat(**GREEDY))
    adapted = await whole(client, chat(model="poet", **GREEDY))
    async with serving(directory / "merged") as other:
        merged = await whole(other, chat(model=MODEL, **GREEDY))
    assert adapted["model"] == "poet"
    assert adapted["choices"] == merged["choices"] != plain["choices"]


async def test_a_model_and_its_adapters_never_share_cached_tokens(client: httpx.AsyncClient) -> None:
    cached = []
    for model in (MODEL, "poet", "critic", MODEL, "poet", "critic"):
        answer = await whole(client, text(prompt=list(range(40)), model=model, **GREEDY), "/v1/completions")
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 0, 0, 32, 32, 32]


async def test_an_adapter_embeds_too(client: httpx.AsyncClient) -> None:
    vectors = []
    for model in (MODEL, "poet", "poet"):
        answer = await client.post("/v1/embeddings", json={"model": model, "input": "a river"})
        assert answer.status_code == 200
        vectors.append(answer.json()["data"][0]["embedding"])
    assert vectors[1] == vectors[2] != vectors[0]


async def test_a_name_that_is_neither_model_nor_adapter_is_not_found(client: httpx.AsyncClient) -> None:
    error = await refused(client, chat(model="painter"), status=404, param="model")
    assert error["code"] == "model_not_found"


async def run(client: httpx.AsyncClient, source: str, **fields: Any) -> dict[str, Any]:
    answer = await whole(client, chat(extension={"source": source}, **fields))
    extension: dict[str, Any] = answer["extension"]
    return extension


CONTEXTS = """
async def main(request, lm):
    found = {}
    for name in [None, "", "poet"]:
        ctx = await lm.context(request.messages, adapter=name)
        fork = await ctx.fork()
        first = await ctx.generate(max_tokens=16, temperature=0.0, template_stops=False)
        second = await fork.generate(max_tokens=16, temperature=0.0, template_stops=False)
        found[str(name)] = [first.tokens, second.tokens]
    return {"found": found, "adapters": lm.model.adapters, "can": "adapters" in lm.model.capabilities}
"""


async def test_a_program_names_the_adapter_of_a_context_and_its_forks_have_it_too(client: httpx.AsyncClient) -> None:
    result = (await run(client, CONTEXTS))["result"]
    plain, none, poet = (result["found"][name] for name in ("None", "", "poet"))
    assert plain == none
    assert plain[0] == plain[1] != poet[0] == poet[1]
    assert result["adapters"] == ["poet", "critic"]
    assert result["can"] is True


async def test_a_program_on_an_adapter_has_it_where_it_names_none(client: httpx.AsyncClient) -> None:
    result = (await run(client, CONTEXTS, model="poet"))["result"]
    assert result["found"]["None"] == result["found"]["poet"] != result["found"][""]


async def test_a_program_is_told_when_there_is_no_such_adapter(client: httpx.AsyncClient) -> None:
    source = """
async def main(request, lm):
    try:
        await lm.context(request.messages, adapter="painter")
    except RuntimeError as error:
        return str(error)
"""
    answer = await whole(client, chat(extension={"source": source}))
    said = "capability_missing: this server has no adapter 'painter'; it has poet, critic"
    assert answer["choices"][0]["message"]["content"] == said


def test_settings_say_what_is_wrong_with_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, said in (("poet", "no adapter: write NAME=DIRECTORY"), ("a=/x,a=/y", "two adapters are named 'a'")):
        monkeypatch.setenv("WYE_ADAPTERS", given)
        with pytest.raises(ValidationError, match=said):
            Settings()
    monkeypatch.setenv("WYE_ADAPTERS", "a=/x, b=/y=z")
    assert Settings().adapter_paths == {"a": "/x", "b": "/y=z"}


def test_an_adapter_cannot_have_a_name_of_the_model() -> None:
    with pytest.raises(ValueError, match="the adapter 'tiny' has a name of the model"):
        ServedModels(["tiny"], ["tiny"])
