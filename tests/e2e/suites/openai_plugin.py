"""Points openai-python's resource tests at a running server: ids that those tests make up become ids of things that
are there.
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx
import openai
import pytest

URL = os.environ["SUITE_URL"]
MADE_UP = {
    "resp_677efb5139a88190b512bc3fef8e535d": "response",
    "response_id": "response",
    "conv_123": "conversation",
    "msg_abc": "item",
    "file_id": "file",
    "batch_id": "batch",
}
KEEPING = ("responses", "conversations", "files", "batches")


def true_ids() -> dict[str, str]:
    """An id of each kind; new ones each time, as some tests delete what they name."""
    with httpx.Client(base_url=URL, timeout=60) as http:
        items = [{"role": "user", "content": "hi"}]
        conversation = http.post("/v1/conversations", json={"items": items}).json()["id"]
        item = http.get(f"/v1/conversations/{conversation}/items").json()["data"][0]["id"]
        body = {"input": "hi", "max_output_tokens": 4, "background": True}
        response = http.post("/v1/responses", json=body).json()["id"]
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}
        upload = {"file": ("lines.jsonl", json.dumps(line).encode())}
        file = http.post("/v1/files", data={"purpose": "batch"}, files=upload).json()["id"]
        body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = http.post("/v1/batches", json=body).json()["id"]
    return {"response": response, "conversation": conversation, "item": item, "file": file, "batch": batch}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of a transport that is not installed here."""
    left_out = [item for item in items if "aiohttp" in item.nodeid]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _true_ids(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(name in request.node.nodeid for name in KEEPING):
        return
    ids = true_ids()

    def translate(options: Any) -> Any:
        parts = [ids[MADE_UP[part]] if part in MADE_UP else part for part in options.url.split("/")]
        options.url = "/".join(parts)
        return options

    async def translate_later(options: Any) -> Any:
        return translate(options)

    monkeypatch.setattr(openai.OpenAI, "_prepare_options", lambda self, options: translate(options))
    monkeypatch.setattr(openai.AsyncOpenAI, "_prepare_options", lambda self, options: translate_later(options))
