"""Paths, headers, keys, bodies and errors (cases of table H)."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from importlib.metadata import version

import httpx
import pytest

from engine.errors import EngineError, QueueFull
from engine.text.model import TextModel
from gateway.translate.prompts import INLINE_CHARS
from tests.fakes import MODEL, ScriptedEngine, repeats, says, scripted_client
from tests.gateway.wire import CHAT, TEXT, chat, error_of, refused, text, whole

PREFLIGHT = {
    "origin": "https://page.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture
async def locked(engine: ScriptedEngine, model: TextModel) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app that wants a key; sends none by itself."""
    async with scripted_client(engine, model, api_keys=("k1", "k2")) as client:
        yield client


@pytest.mark.parametrize("streams", [True, False])
async def test_g_56_an_overlong_prompt_is_refused_in_words_that_agents_know(model: TextModel, streams: bool) -> None:
    engine = ScriptedEngine(model, repeats(40), max_model_len=128)
    async with scripted_client(engine, model) as client:
        body = chat(messages=[{"role": "user", "content": "word " * 256}], stream=streams)
        error = await refused(client, body, param="messages")
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 128 tokens")
        error = await refused(client, text(prompt="word", max_tokens=128), TEXT, param="prompt")
        assert error["code"] == "context_length_exceeded"
        assert "128 for the completion" in error["message"]
        no_room = {"messages": [{"role": "user", "content": "x" * 200}]}
        assert (await refused(client, no_room, param="messages"))["code"] == "context_length_exceeded"


async def test_huge_text_is_refused_before_it_is_tokenised(
    model: TextModel, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> list[int]:
        raise AssertionError("the text was tokenised")

    monkeypatch.setattr(type(model.tokenizer), "encode", fail)
    async with scripted_client(engine, model, max_body_bytes=64 * 1024 * 1024) as client:
        error = await refused(client, chat(messages=[{"role": "user", "content": "x" * 20_000_000}]))
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 4096 tokens")


async def test_long_text_is_tokenised_in_a_thread_and_the_same(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    long = "hello world, " * 900
    ids = model.tokenizer.encode(long, add_special=False)
    assert len(long) > INLINE_CHARS
    assert len(ids) < engine.info.limit_tokens - 8
    await whole(client, text(prompt=long), TEXT)
    assert engine.last.prompt_ids == ids


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize"])
async def test_g_57_an_unknown_model_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    body = {"model": "no-such-model", "prompt": "a"} if path != CHAT else chat(model="no-such-model")
    error = await refused(client, body, path, status=404, param="model")
    assert error["code"] == "model_not_found"
    assert "no-such-model" in error["message"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat(n=2)), (TEXT, text(prompt=["one", "two"]))])
async def test_an_answer_says_in_a_header_what_its_kv_has_cost(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str, body: dict[str, object]
) -> None:
    engine.kv_kib_ms = 1234
    answer = await client.post(path, json=body)
    assert answer.headers["x-cost-kv-kib-seconds"] == "2.468"


async def test_aliases_are_answered_under_the_name_asked_for(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model, model_names=("org/tiny", "gpt-4o")) as client:
        assert (await whole(client, chat(model="gpt-4o")))["model"] == "gpt-4o"
        listed = (await client.get("/v1/models")).json()
        assert [entry["id"] for entry in listed["data"]] == ["org/tiny", "gpt-4o"]
        assert (await client.get("/v1/models/org/tiny")).json()["max_model_len"] == 4096
        error_of(await client.get("/v1/models/org/other"), 404)


async def test_g_58_a_preflight_needs_no_key(locked: httpx.AsyncClient) -> None:
    for path in (CHAT, "/v1/models", "/tokenize", "/nope"):
        answer = await locked.options(path, headers=PREFLIGHT)
        assert answer.status_code in (200, 204)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "x-stainless-os" in answer.headers["access-control-allow-headers"]


async def test_a_preflight_of_a_foreign_origin_is_refused_in_the_error_shape(
    engine: ScriptedEngine, model: TextModel
) -> None:
    async with scripted_client(engine, model, cors_origins=("https://mine.example",)) as client:
        answer = await client.options(CHAT, headers=PREFLIGHT)
        assert "origin" in error_of(answer, 400)["message"]
        assert "access-control-allow-origin" not in answer.headers
        answer = await client.options(CHAT, headers={**PREFLIGHT, "origin": "https://mine.example"})
        assert answer.headers["access-control-allow-origin"] == "https://mine.example"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (CHAT, "POST, OPTIONS"),
        (TEXT + "/", "POST, OPTIONS"),
        ("/tokenize", "POST, OPTIONS"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
        (f"/v1/models/{MODEL}/", "GET, HEAD, OPTIONS"),
        ("/health", "GET, HEAD, OPTIONS"),
        ("/openapi.json", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_path_tells_its_methods_to_whoever_asks_or_uses_another(
    locked: httpx.AsyncClient, path: str, methods: str
) -> None:
    answer = await locked.options(path)
    assert (answer.status_code, answer.headers["allow"]) == (204, methods)
    answer = await locked.request("PATCH", path, headers={"authorization": "Bearer k1"})
    error_of(answer, 405)
    assert answer.headers.get_list("allow") == [methods]


async def test_a_path_that_does_not_exist_has_no_options(locked: httpx.AsyncClient) -> None:
    error_of(await locked.options("/nope"), 404)


async def test_errors_can_be_read_by_pages_of_other_origins(locked: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    origin = {"origin": "https://page.example"}
    key = {"authorization": "Bearer k1"}
    engine.refusal = EngineError("broken")
    answers = [
        await locked.get("/v1/models", headers=origin),
        await locked.get("/nope", headers=origin | key),
        await locked.post(CHAT, json=chat(n=0), headers=origin | key),
        await locked.post(CHAT, json=chat(), headers=origin | key),
    ]
    assert [answer.status_code for answer in answers] == [401, 404, 400, 500]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        assert answer.headers["x-request-id"]


async def test_only_named_origins_are_allowed_if_there_are_names(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model, cors_origins=("https://a.example",)) as client:
        for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
            answer = await client.get("/v1/models", headers={"origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/models", "/health", "/tokenize"])
async def test_g_59_a_trailing_slash_is_no_redirect(client: httpx.AsyncClient, path: str) -> None:
    method = "GET" if path in ("/v1/models", "/health") else "POST"
    body = chat(prompt="hi")
    answer = await client.request(method, path + "/", json=body if method == "POST" else None)
    assert answer.status_code == 200


async def test_g_60_two_requests_with_one_client_id_do_not_mix(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda request, index: [[request.sampling.seed or 40], 0.02, [request.sampling.seed or 40]]
    headers = {"x-request-id": "same"}
    answers = await asyncio.gather(
        *(client.post(TEXT, json=text(seed=seed, request_id="same"), headers=headers) for seed in (41, 42))
    )
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert texts[0] != texts[1]
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
    assert len({request.request_id for request in engine.requests}) == 2


@pytest.mark.parametrize("given", ["", "x" * 129, "has space", "no\x7fcontrol"])
async def test_a_client_id_that_is_not_sane_is_replaced(client: httpx.AsyncClient, given: str) -> None:
    answer = await client.get("/version", headers={"x-request-id": given})
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/", 200),
        ("HEAD", "/health", 200),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/metrics", 200),
        ("GET", CHAT, 405),
        ("PUT", "/v1/models", 405),
        ("DELETE", f"/v1/models/{MODEL}", 405),
        ("GET", "/nope", 404),
        ("POST", "/v1/nope", 404),
    ],
)
async def test_g_83_paths_and_verbs(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    if status >= 400:
        assert f"{method} {path}" in error_of(answer, status)["message"]
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("header", ["Bearer k1", "bearer k2", "BEARER  k1 "])
async def test_a_known_key_is_let_in(locked: httpx.AsyncClient, header: str) -> None:
    assert (await locked.get("/v1/models", headers={"authorization": header})).status_code == 200


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer k3", "Basic k1", "k1", "Bearer k1k1", "Bearer ké"])
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/version", "/v1/nope"])
async def test_an_unknown_key_is_kept_out(locked: httpx.AsyncClient, header: str | None, path: str) -> None:
    headers = httpx.Headers({} if header is None else {"authorization": header}, encoding="latin-1")
    answer = await locked.get(path, headers=headers)
    error = error_of(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_probes_and_metrics_need_no_key(
    locked: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    for path in ("/health", "/ping", "/ready", "/metrics"):
        assert (await locked.get(path)).status_code == 200
    async with scripted_client(engine, model, api_keys=("k1",), open_metrics=False) as client:
        error_of(await client.get("/metrics"), 401)


async def test_any_key_is_accepted_if_none_is_configured(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models", headers={"authorization": "Bearer whatever"})).status_code == 200


async def test_a_body_beyond_the_limit_is_refused_unread(engine: ScriptedEngine, model: TextModel) -> None:
    num_sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal num_sent
        for _ in range(1000):
            num_sent += 1
            yield b" " * 1024

    json_type = {"content-type": "application/json"}
    async with scripted_client(engine, model, max_body_bytes=10_000) as client:
        answer = await client.post(CHAT, content=b" " * 10_001, headers=json_type)
        assert error_of(answer, 413)["code"] == "request_too_large"
        answer = await client.post(CHAT, content=pieces(), headers=json_type)
        error_of(answer, 413)
        assert num_sent <= 12
        await whole(client, chat())


async def test_gzip_bodies_are_unpacked_up_to_the_limit(engine: ScriptedEngine, model: TextModel) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = json.dumps(chat()).encode()

    async def nothing_often() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield gzip.compress(b"")

    async with scripted_client(engine, model, max_body_bytes=10_000) as client:
        assert (await client.post(CHAT, content=gzip.compress(body), headers=headers)).status_code == 200
        bomb = gzip.compress(b" " * 5_000_000)
        assert len(bomb) < 10_000
        error_of(await client.post(CHAT, content=bomb, headers=headers), 413)
        members = gzip.compress(body[:20]) + gzip.compress(body[20:])
        assert (await client.post(CHAT, content=members, headers=headers)).status_code == 200
        error_of(await client.post(CHAT, content=nothing_often(), headers=headers), 413)
        error_of(await client.post(CHAT, content=gzip.compress(body) + b"rest", headers=headers), 400)
        error_of(await client.post(CHAT, content=gzip.compress(body)[:-9], headers=headers), 400)
        error_of(await client.post(CHAT, content=body, headers=headers), 400)
        error_of(await client.post(CHAT, content=body, headers={**headers, "content-encoding": "zstd"}), 415)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        (None, 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
async def test_bodies_are_json_only(client: httpx.AsyncClient, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await client.post(CHAT, content=json.dumps(chat()), headers=headers)
    assert answer.status_code == status
    if status != 200:
        error_of(answer, status)


async def test_a_bug_is_a_500_that_says_nothing_and_is_not_retried(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.refusal = EngineError("secret at /home/me/file.py")
    answer = await client.post(CHAT, json=chat())
    error = error_of(answer, 500)
    assert error["type"] == "server_error"
    assert "secret" not in answer.text
    assert answer.headers["x-should-retry"] == "false"


async def test_a_wrong_query_names_its_field_in_what_people_read(client: httpx.AsyncClient) -> None:
    for query, name in (("stream=perhaps", "stream"), ("stream=true&starting_after=-1", "starting_after")):
        error = error_of(await client.get(f"/v1/responses/resp_1?{query}"), 400)
        assert error["param"] == name
        assert f"'{name}'" in error["message"]


async def test_the_console_tells_its_head_as_its_page(client: httpx.AsyncClient) -> None:
    for path in ("/console", "/console/style.css"):
        page, head = await client.get(path), await client.head(path)
        assert (page.status_code, head.status_code) == (200, 200)
        assert head.headers["etag"] == page.headers["etag"]


async def test_an_overload_says_when_to_come_back(engine: ScriptedEngine, model: TextModel) -> None:
    engine.refusal = QueueFull(100)
    async with scripted_client(engine, model, retry_after_s=7) as client:
        answer = await client.post(CHAT, json=chat())
    error = error_of(answer, 503)
    assert error["code"] == "server_is_overloaded"
    assert answer.headers["retry-after"] == "7"


async def test_error_messages_do_not_return_megabytes(client: httpx.AsyncClient) -> None:
    for body in (chat(model="x" * 100_000), chat(metadata={"k" * 100_000: "v"}), chat(reasoning_effort="e" * 100_000)):
        answer = await client.post(CHAT, json=body)
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 2_000


async def test_every_answer_carries_the_usual_headers(client: httpx.AsyncClient) -> None:
    for answer in (await client.post(CHAT, json=chat()), await client.get("/nope"), await client.get("/health")):
        assert answer.headers["x-request-id"].startswith("req_")
        assert int(answer.headers["openai-processing-ms"]) >= 0
        assert answer.headers["openai-version"]


async def test_a_text_is_tokenised_and_back(client: httpx.AsyncClient, model: TextModel) -> None:
    for prefix in ("", "/v1"):
        answer = await whole(client, {"prompt": "hi 🙂", "return_token_strs": True}, prefix + "/tokenize")
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert answer["max_model_len"] == 4096
        back = await whole(client, {"model": MODEL, "tokens": answer["tokens"]}, prefix + "/detokenize")
        assert back == {"prompt": "hi 🙂"}


async def test_a_conversation_is_tokenised_as_a_chat_would_be(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    await whole(client, chat())
    answer = await whole(client, {"messages": chat()["messages"]}, "/tokenize")
    assert answer["tokens"] == engine.last.prompt_ids
    without = await whole(client, {"messages": chat()["messages"], "add_generation_prompt": False}, "/tokenize")
    assert without["count"] < answer["count"]


async def test_far_more_than_a_context_is_neither_tokenised_nor_made_from_ids(model: TextModel) -> None:
    engine = ScriptedEngine(model, repeats(40), max_model_len=64)
    many = [{"role": "user", "content": ""}] * (16 * 64 + 1)
    async with scripted_client(engine, model) as client:
        for body, param in (({"prompt": "x" * 100_000}, "prompt"), ({"messages": many}, "messages")):
            error = await refused(client, body, "/tokenize", param=param)
            assert "1024 tokens" in error["message"]
            assert "context" not in error["message"]
        await whole(client, {"tokens": [40] * 1024}, "/detokenize")
        await refused(client, {"tokens": [40] * 1025}, "/detokenize", param="tokens")


async def test_unknown_ids_are_not_detokenised(client: httpx.AsyncClient) -> None:
    await refused(client, {"tokens": [1, 10**9]}, "/detokenize", param="tokens[1]")
    await refused(client, {"tokens": [-1]}, "/detokenize", param="tokens[0]")
    await refused(client, {"tokens": ["a"]}, "/detokenize", param="tokens[0]")
    await refused(client, {}, "/tokenize", param="prompt")


async def test_the_root_tells_where_everything_is_without_a_key(locked: httpx.AsyncClient) -> None:
    answer = await locked.get("/")
    places = answer.json()
    assert (answer.status_code, places) == (
        200,
        {"server": "wye", "api": "/v1", "console": "/console", "docs": "/docs"},
    )
    assert (await locked.get(places["console"])).status_code == 200
    for path in (places["docs"], places["api"] + "/models"):
        assert (await locked.get(path)).status_code == 401  # they are there, and need a key
    assert (await locked.head("/")).status_code == 200
    assert (await locked.post("/")).status_code == 405


async def test_the_version_is_that_of_the_distribution(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": version("wye")}


async def test_without_an_engine_the_server_says_so(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model) as client:
        engine.die()
        for path in ("/health", "/ready"):
            answer = await client.get(path)
            error_of(answer, 503)
            assert answer.headers["retry-after"] == "1"
        error_of(await client.post(CHAT, json=chat()), 503)
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] is None
        assert "wye_engine_up 0.0" in (await client.get("/metrics")).text


async def test_a_request_waits_a_moment_for_an_engine_that_is_connecting(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    info = engine.info
    engine.die()
    asyncio.get_running_loop().call_later(0.1, setattr, engine, "_info", info)
    assert (await whole(client, chat()))["choices"][0]["finish_reason"] == "stop"


async def test_a_whole_answer_has_role_text_and_kind(engine: ScriptedEngine, model: TextModel) -> None:
    engine.script = says(model, "other words")
    async with scripted_client(engine, model) as client:
        answer = await whole(client, chat())
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "other words", "refusal": None}
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)


async def test_a_rendered_chat_is_what_the_model_would_be_given(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    body = chat(temperature=0.25, max_tokens=5)
    rendered = await whole(client, body, CHAT + "/render")
    assert not engine.requests
    await whole(client, body)
    assert rendered["token_ids"] == engine.last.prompt_ids
    assert model.tokenizer.encode(rendered["prompt"], add_special=False) == rendered["token_ids"]
    assert (rendered["sampling_params"]["temperature"], rendered["sampling_params"]["max_tokens"]) == (0.25, 5)


async def test_rendering_refuses_what_a_chat_would_refuse(client: httpx.AsyncClient) -> None:
    await refused(client, chat(temperature=3), CHAT + "/render", param="temperature")
    await refused(client, chat(model="other"), CHAT + "/render", status=404, param="model")
