"""What the API's description promises is kept: requests are drawn from it, valid and broken ones, at a real server."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import positive_data_acceptance
from schemathesis.schemas import APIOperation

from gateway.app import create_app
from gateway.state.embedded import EmbeddedRedis
from tests.fakes import MODEL, RunningServer, ScriptedEngine, make_settings, running_server, says, text_model
from tests.gateway.responses.wire import ask
from tests.gateway.wire import Body, chat, text

Operation = APIOperation[Any, Any, Any, Any]

TEXT_MODEL = text_model()
MAIN = ("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses")
NUM_MAIN = 40
"""Requests drawn for each of the main operations."""

NUM_OTHER = 20

KEYS: dict[str, Any] = {"admin_key": "the-key-of-the-administrator", "api_keys": ("a-key",)}

UNTOLD = [positive_data_acceptance]
"""A description cannot say what fits the model, nor which fields exclude each other: valid bodies may be refused."""

PROGRAM = 'EXTENSION = {"name": "x", "version": "1.0.0"}\n\nasync def main(request, lm):\n    return 1\n'

TOOL: Body = {"name": "one", "kind": "script", "script": {"source": PROGRAM}}

PREFIX: Body = {"name": "one", "input": "hi"}

PLAIN: dict[str, Body] = {
    "POST /v1/chat/completions": chat(),
    "POST /v1/completions": text(),
    "POST /v1/embeddings": {"input": "hi"},
    "POST /score": {"text_1": "hi", "text_2": ["there"]},
    "POST /rerank": {"query": "hi", "documents": ["there", {"text": "here"}]},
    "POST /v1/responses": ask(),
    "POST /v1/responses/input_tokens": ask(),
    "POST /v1/chat/completions/render": chat(),
    "POST /v1/prefixes": PREFIX,
    "POST /v1/tools": TOOL,
    "POST /v1/tools/{tool_id}/test": {},
    "POST /v1/conversations/{conversation_id}/items": {"items": [{"role": "user", "content": "hi"}]},
}
"""Bodies that are answered."""


def limits(operation: Operation) -> dict[str, Any]:
    """How much is drawn."""
    num_examples = NUM_MAIN if operation.label in MAIN else NUM_OTHER
    return {"max_examples": num_examples, "deadline": None, "suppress_health_check": list(HealthCheck)}


def headers_for(path: str) -> dict[str, str]:
    """With the key that opens a path: an administrator's, or any other."""
    key = KEYS["admin_key"] if path.startswith(("/v1/organization", "/v1/admin")) else KEYS["api_keys"][0]
    return {"authorization": f"Bearer {key}"}


def engine() -> ScriptedEngine:
    return ScriptedEngine(TEXT_MODEL, says(TEXT_MODEL, "Hello there."))


def described() -> dict[str, Any]:
    """The description, but that no other models are asked for than the one that is served."""
    description = copy.deepcopy(create_app(make_settings(), engine=engine(), text=TEXT_MODEL).openapi())
    for schema in description["components"]["schemas"].values():
        if schema.get("properties", {}).get("model", {}).get("anyOf"):
            schema["properties"]["model"] = {"enum": [MODEL, None]}
    return description


def operations() -> list[Operation]:
    """Every operation of the description."""
    found = [one.ok() for one in schemathesis.openapi.from_dict(described()).get_all_operations()]  # type: ignore[union-attr]
    return [one for one in found if one is not None]


@pytest.fixture(scope="module")
def server(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server that is described, with a store."""
    files_dir = str(tmp_path_factory.mktemp("files"))
    with running_server(engine(), TEXT_MODEL, redis_url=redis_server.url, files_dir=files_dir, **KEYS) as server:
        yield server


def administered(server: RunningServer) -> Body:
    """The same, of things that administrators have made."""
    projects = "/v1/organization/projects"
    with httpx.Client(base_url=server.url, headers=headers_for(projects), timeout=60) as client:
        project = client.post(projects, json={"name": "one"}).json()["id"]
        account = client.post(f"{projects}/{project}/service_accounts", json={"name": "robot"}).json()
        return {
            "project_id": project,
            "service_account_id": account["id"],
            "api_key_id": account["api_key"]["id"],
            "key_id": client.post("/v1/organization/admin_api_keys", json={"name": "two"}).json()["id"],
            "rate_limit_id": client.get(f"{projects}/{project}/rate_limits").json()["data"][0]["id"],
        }


@pytest.fixture
def known(server: RunningServer) -> Body:
    """Path parameters of things that are there."""
    with httpx.Client(base_url=server.url, headers=headers_for("/v1/responses"), timeout=60) as client:
        conversation = client.post("/v1/conversations", json={"items": [{"role": "user", "content": "hi"}]}).json()
        items = client.get(f"/v1/conversations/{conversation['id']}/items").json()
        file = client.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        return {
            "model_id": MODEL,
            "response_id": client.post("/v1/responses", json=ask()).json()["id"],
            "conversation_id": conversation["id"],
            "item_id": items["data"][0]["id"],
            "file_id": file["id"],
            "extension_id": client.post("/v1/extensions", json={"source": PROGRAM}).json()["id"],
            "run_id": client.post("/v1/runs", json={"source": PROGRAM}).json()["id"],
            "prefix_id": client.post("/v1/prefixes", json=PREFIX).json()["id"],
            "tool_id": client.post("/v1/tools", json=TOOL).json()["id"],
            "batch_id": client.post("/v1/batches", json=asked).json()["id"],
            **administered(server),
        }


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_an_operation_answers_as_described(server: RunningServer, known: Body, operation: Operation) -> None:
    @settings(**limits(operation))
    @given(
        st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)),
        st.booleans(),
    )
    def check(case: schemathesis.Case[Any], is_known: bool) -> None:
        if is_known:
            case.path_parameters.update({name: known[name] for name in case.path_parameters})
        headers = headers_for(operation.path)
        case.call_and_validate(base_url=server.url, headers=headers, excluded_checks=UNTOLD, timeout=60)

    check()


@pytest.mark.parametrize("operation", [one for one in operations() if one.label in PLAIN], ids=lambda one: one.label)
def test_a_plain_request_with_a_few_fields_more_answers_as_described(
    server: RunningServer, known: Body, operation: Operation
) -> None:
    statuses = set()

    @settings(**limits(operation))
    @given(operation.as_strategy(), st.randoms())
    def check(case: schemathesis.Case[Any], rng: random.Random) -> None:
        case.path_parameters.update({name: known[name] for name in case.path_parameters})
        assert isinstance(case.body, dict)
        names = rng.sample(sorted(case.body), min(len(case.body), 2))
        case.body = {**PLAIN[operation.label], **{name: case.body[name] for name in names}}
        headers = headers_for(operation.path)
        answer = case.call_and_validate(base_url=server.url, headers=headers, excluded_checks=UNTOLD, timeout=60)
        statuses.add(answer.status_code)

    check()
    assert statuses <= {200, 400, 404}
    assert 200 in statuses
