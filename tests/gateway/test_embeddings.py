"""POST /v1/embeddings over a scripted engine whose embedding of a prompt is known."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest

from engine.errors import EngineStopped, QueueFull
from engine.request import Pooling
from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from gateway.embeddings import MAX_IN_FLIGHT
from tests.engine.text.vocabularies import byte_level
from tests.fakes import HIDDEN_SIZE, MODEL, RunningServer, ScriptedEngine, embedding_of, running_server, scripted_client
from tests.gateway.wire import Body, refused, whole

PATH = "/v1/embeddings"
Vector = npt.NDArray[np.float32]


def asks(**fields: Any) -> Body:
    """A small request; a field given here replaces the default."""
    return {"model": MODEL, "input": "hi", **fields}


def expected(model: TextModel, text: str | list[int]) -> Vector:
    """The embedding of a text or of token ids, of length 1."""
    ids = model.tokenizer.encode(text, add_special=True) if isinstance(text, str) else text
    values = embedding_of(ids)
    found: Vector = values / np.linalg.norm(values)
    return found


def decoded(text: str) -> Vector:
    """Values out of base64."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


def close(found: object, wanted: Vector) -> bool:
    """Equal but for the last bits of a float32."""
    return bool(np.allclose(np.asarray(found), wanted, atol=1e-6))


async def test_the_answer_has_the_shape_of_openai_and_nothing_else(client: httpx.AsyncClient, model: TextModel) -> None:
    answer = await whole(client, asks(), PATH)
    num_tokens = len(model.tokenizer.encode("hi", add_special=True))
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    (entry,) = answer["data"]
    assert entry.keys() == {"object", "index", "embedding"}
    assert (entry["object"], entry["index"]) == ("embedding", 0)
    assert all(type(value) is float for value in entry["embedding"])
    assert close(entry["embedding"], expected(model, "hi"))


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hello", ["hello"]),
        (["hello"], ["hello"]),
        (["hello", "world", "hello"], ["hello", "world", "hello"]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6, 7]], [[5, 6, 7]]),
        ([[5, 6], [7], [8, 9, 10]], [[5, 6], [7], [8, 9, 10]]),
    ],
)
async def test_every_form_of_input_is_embedded_in_its_order(
    client: httpx.AsyncClient, model: TextModel, given: object, prompts: list[str | list[int]]
) -> None:
    data = (await whole(client, asks(input=given), PATH))["data"]
    assert [entry["index"] for entry in data] == list(range(len(prompts)))
    assert all(close(entry["embedding"], expected(model, one)) for entry, one in zip(data, prompts, strict=True))


async def test_base64_is_the_same_numbers_as_little_endian_float32(client: httpx.AsyncClient) -> None:
    body = asks(input=["a", "some longer text"])
    numbers = await whole(client, {**body, "encoding_format": "float"}, PATH)
    packed = await whole(client, {**body, "encoding_format": "base64"}, PATH)
    for one, other in zip(numbers["data"], packed["data"], strict=True):
        values = decoded(other["embedding"])
        assert len(values) == HIDDEN_SIZE
        assert values.tolist() == one["embedding"]
    assert numbers["usage"] == packed["usage"]


@pytest.mark.parametrize("dimensions", [1, 3, HIDDEN_SIZE])
async def test_dimensions_keep_leading_values_at_length_1(
    client: httpx.AsyncClient, model: TextModel, dimensions: int
) -> None:
    found = (await whole(client, asks(dimensions=dimensions), PATH))["data"][0]["embedding"]
    cut = expected(model, "hi")[:dimensions]
    assert len(found) == dimensions
    assert math.isclose(math.hypot(*found), 1.0, rel_tol=1e-6)
    assert close(found, cut / np.linalg.norm(cut))


async def test_values_are_as_they_are_where_they_are_not_to_be_normalised(
    engine: ScriptedEngine, model: TextModel
) -> None:
    raw = embedding_of(model.tokenizer.encode("hi", add_special=True))
    async with scripted_client(engine, model, normalize_embeddings=False) as client:
        assert close((await whole(client, asks(), PATH))["data"][0]["embedding"], raw)
        short = await whole(client, asks(dimensions=2), PATH)
        assert close(short["data"][0]["embedding"], raw[:2])
        scaled = await whole(client, asks(normalize=True), PATH)
        assert close(scaled["data"][0]["embedding"], expected(model, "hi"))
    async with scripted_client(engine, model) as client:
        assert close((await whole(client, asks(normalize=False), PATH))["data"][0]["embedding"], raw)


@pytest.mark.parametrize(("setting", "pooling"), [("auto", "mean"), ("mean", "mean"), ("last", "last")])
async def test_the_setting_says_which_states_make_the_embedding(
    engine: ScriptedEngine, model: TextModel, setting: str, pooling: str
) -> None:
    async with scripted_client(engine, model, pooling=setting) as client:
        await whole(client, asks(cache_salt="s", priority=3), PATH)
    assert engine.last.pooling is Pooling(pooling)
    assert (engine.last.salt, engine.last.priority, engine.last.sampling.max_tokens) == ("s", 3, 0)


async def test_special_tokens_stand_around_a_text_as_the_model_was_trained_unless_unwanted() -> None:
    library = byte_level()
    begin, end = (int(library.token_to_id(name) or 0) for name in ("<|begin|>", "<|end|>"))
    text = TextModel(
        path=Path("tiny"),
        tokenizer=Tokenizer(library, bos_token_id=begin, adds_bos=True, closing_ids=(end,)),
        chat_template=None,
    )
    engine = ScriptedEngine(text, lambda request, index: [])
    plain = text.tokenizer.encode("hello there", add_special=False)
    async with scripted_client(engine, text) as client:
        await whole(client, asks(input="hello there"), PATH)
        assert engine.last.prompt_ids == [begin, *plain, end]
        await whole(client, asks(input="hello there", add_special_tokens=False), PATH)
        assert engine.last.prompt_ids == plain
        await whole(client, asks(input="hello there", truncate_prompt_tokens=3), PATH)
        assert engine.last.prompt_ids == [begin, plain[0], end]
        await whole(client, asks(input="hello there", truncate_prompt_tokens=1), PATH)
        assert engine.last.prompt_ids == [end]
        await whole(client, asks(input=plain, truncate_prompt_tokens=1), PATH)
        assert engine.last.prompt_ids == plain[:1]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, slice(0, 4)),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, slice(-4, None)),
        ({"truncate_prompt_tokens": -1}, slice(0, 32)),
        ({"truncate_prompt_tokens": 32}, slice(0, 32)),
    ],
)
async def test_what_is_too_long_is_cut_if_that_is_asked_for(
    model: TextModel, fields: dict[str, Any], kept: slice
) -> None:
    engine = ScriptedEngine(model, lambda request, index: [], max_model_len=32)
    ids = list(range(10, 60))
    async with scripted_client(engine, model) as client:
        answer = await whole(client, asks(input=ids, **fields), PATH)
    assert engine.last.prompt_ids == ids[kept]
    assert answer["usage"]["prompt_tokens"] == len(ids[kept])


async def test_a_text_far_beyond_the_context_is_refused_even_when_it_may_be_cut(model: TextModel) -> None:
    engine = ScriptedEngine(model, lambda request, index: [], max_model_len=32)
    async with scripted_client(engine, model) as client:
        error = await refused(client, asks(input="x" * 2**20, truncate_prompt_tokens=4), PATH, param="input")
    assert error["code"] == "context_length_exceeded"
    assert not engine.requests


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no input", {"input": None}, "input"),
    ("an empty string", {"input": ""}, "input"),
    ("an empty string among others", {"input": ["a", ""]}, "input[1]"),
    ("an empty list", {"input": []}, "input"),
    ("an empty list of ids", {"input": [[1], []]}, "input[1]"),
    ("a number", {"input": 5}, "input"),
    ("an object", {"input": {"text": "a"}}, "input"),
    ("mixed kinds", {"input": ["a", [1]]}, "input[1]"),
    ("null among strings", {"input": ["a", None]}, "input[1]"),
    ("a negative id", {"input": [1, -1]}, "input[1]"),
    ("a boolean id", {"input": [1, True]}, "input[1]"),
    ("an id beyond 64 bits", {"input": [2**70]}, "input[0]"),
    ("an id outside the vocabulary", {"input": [1, 2**30]}, "input[1]"),
    ("an id outside the vocabulary in a later list", {"input": [[1], [2, 2**30]]}, "input[1][1]"),
    ("a text too long", {"input": "word " * 5000}, "input"),
    ("a text too long among others", {"input": ["a", "word " * 5000]}, "input[1]"),
    ("ids too many", {"input": [5] * 4097}, "input"),
    ("inputs too many", {"input": ["a"] * 2049}, "input"),
    ("an unknown format", {"encoding_format": "hex"}, "encoding_format"),
    ("a format of the wrong type", {"encoding_format": 1}, "encoding_format"),
    ("no dimensions", {"dimensions": 0}, "dimensions"),
    ("more dimensions than there are", {"dimensions": HIDDEN_SIZE + 1}, "dimensions"),
    ("dimensions as text", {"dimensions": "4"}, "dimensions"),
    ("a user that is no text", {"user": 5}, "user"),
    ("nothing to keep", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ("more to keep than fits", {"truncate_prompt_tokens": 4097}, "truncate_prompt_tokens"),
    ("less than nothing to keep", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ("an unknown side", {"truncation_side": "middle"}, "truncation_side"),
    ("a flag as text", {"normalize": "yes"}, "normalize"),
    ("an empty salt", {"cache_salt": ""}, "cache_salt"),
    ("another type of number", {"embed_dtype": "float16"}, "embed_dtype"),
    ("another order of bytes", {"endianness": "big"}, "endianness"),
]


@pytest.mark.parametrize(("fields", "param"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_bad_input_is_refused_by_name_before_any_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    await refused(client, asks(**fields), PATH, param=param)
    assert not engine.requests


async def test_a_lone_surrogate_is_refused_by_name(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        PATH, content=rb'{"input": ["a", "\ud83d"]}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[1]"


async def test_an_unknown_model_is_a_404(client: httpx.AsyncClient) -> None:
    await refused(client, asks(model="nope"), PATH, status=404, param="model")


async def test_null_is_the_same_as_omitted(client: httpx.AsyncClient) -> None:
    names = ("model", "encoding_format", "dimensions", "user", "truncate_prompt_tokens", "normalize", "priority")
    assert await whole(client, asks(**dict.fromkeys(names)), PATH) == await whole(client, asks(), PATH)


@pytest.mark.parametrize(("error", "status"), [(QueueFull(9), 503), (EngineStopped("the engine process ended"), 503)])
async def test_what_the_engine_refuses_is_told(
    client: httpx.AsyncClient, engine: ScriptedEngine, error: Exception, status: int
) -> None:
    engine.refusal = error  # type: ignore[assignment]  # both are engine errors
    answer = await client.post(PATH, json=asks(input=["a"] * 100))
    assert answer.status_code == status
    assert not engine.streams


async def test_a_request_of_many_texts_has_a_few_at_a_time_in_the_engine(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    most = 0

    class Watched(ScriptedEngine):
        async def submit(self, request: Any) -> Any:
            nonlocal most
            stream = await super().submit(request)
            most = max(most, len(self.streams))
            await asyncio.sleep(0)
            return stream

    watched = Watched(model, lambda request, index: [])
    texts = [f"text {number}" for number in range(300)]
    async with scripted_client(watched, model) as client:
        answer = await whole(client, asks(input=texts), PATH)
        metrics = (await client.get("/metrics")).text
    assert all(
        close(entry["embedding"], expected(model, text)) for entry, text in zip(answer["data"], texts, strict=True)
    )
    assert 1 < most <= MAX_IN_FLIGHT
    assert not watched.streams
    assert "wye_embeddings_total 300.0" in metrics


async def eventually(holds: Callable[[], bool]) -> None:
    """Waits until something is so, for no more than some seconds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the server runs in a thread of its own
            await asyncio.sleep(0.01)


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel) -> Iterator[RunningServer]:
    """A real server."""
    with running_server(engine, model) as server:
        yield server


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k") as sdk:
        yield sdk


async def test_g_61_the_official_client_gets_the_width_of_the_model_in_either_format(
    sdk: openai.AsyncOpenAI, model: TextModel
) -> None:
    texts = ["first", "and a second one"]
    by_default = await sdk.embeddings.create(model=MODEL, input=texts)
    as_numbers = await sdk.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for one, other, text in zip(by_default.data, as_numbers.data, texts, strict=True):
        assert len(one.embedding) == HIDDEN_SIZE
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert close(one.embedding, expected(model, text))
    assert by_default.usage == as_numbers.usage
    short = await sdk.embeddings.create(model=MODEL, input=[[1, 2], [3]], dimensions=2, user="u")
    assert [len(entry.embedding) for entry in short.data] == [2, 2]
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.embeddings.create(model=MODEL, input=[""])
    assert bad.value.param == "input[0]"


async def test_a_client_that_leaves_ends_the_work(
    sdk: openai.AsyncOpenAI, server: RunningServer, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fakes.ScriptedStream._emit", lambda *args: None)
    call = asyncio.create_task(sdk.embeddings.create(model=MODEL, input=["a"] * 100))
    await eventually(lambda: len(engine.streams) == MAX_IN_FLIGHT)
    call.cancel()
    await eventually(lambda: not engine.streams and not server.num_active)
    assert len(engine.aborted) == MAX_IN_FLIGHT
    assert len(engine.requests) == MAX_IN_FLIGHT
