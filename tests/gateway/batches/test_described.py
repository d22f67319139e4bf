"""Files and batches are answered as the API's description says."""

from __future__ import annotations

import httpx

from tests.gateway.batches.conftest import Start
from tests.gateway.batches.wire import BATCHES, FILES, begin, ended, line
from tests.gateway.test_answered import check_answer
from tests.gateway.wire import Body, chat


async def test_files_and_batches_are_answered_as_described(client: httpx.AsyncClient) -> None:
    description: Body = (await client.get("/openapi.json")).json()
    asked = await client.post(FILES, files={"file": b"x"}, data={"purpose": "batch"})
    check_answer(description, f"POST {FILES}", asked.json())
    check_answer(description, f"GET {FILES}", (await client.get(FILES)).json())
    file_id = asked.json()["id"]
    check_answer(description, f"GET {FILES}/{{file_id}}", (await client.get(f"{FILES}/{file_id}")).json())
    made = await begin(client, [line(1), line(2, body=chat(temperature=9))], metadata={"a": "b"})
    check_answer(description, f"POST {BATCHES}", made)
    check_answer(description, f"GET {BATCHES}/{{batch_id}}", await ended(client, made["id"]))
    failed = await ended(client, (await begin(client, ["?"]))["id"])
    assert failed["errors"]
    check_answer(description, f"GET {BATCHES}/{{batch_id}}", failed)
    check_answer(description, f"GET {BATCHES}", (await client.get(BATCHES)).json())
    deleted = await client.delete(f"{FILES}/{file_id}")
    check_answer(description, f"DELETE {FILES}/{{file_id}}", deleted.json())


async def test_a_cancelled_batch_is_told_as_described(start: Start) -> None:
    client = start().client
    description: Body = (await client.get("/openapi.json")).json()
    made = await begin(client, [line(1)])
    cancelled = await client.post(f"{BATCHES}/{made['id']}/cancel")
    check_answer(description, f"POST {BATCHES}/{{batch_id}}/cancel", cancelled.json())


async def test_content_is_told_as_bytes_and_uploads_as_forms(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    content = paths[f"{FILES}/{{file_id}}/content"]["get"]["responses"]["200"]["content"]
    assert content.keys() == {"application/octet-stream"}
    form = paths[FILES]["post"]["requestBody"]["content"]
    assert form.keys() == {"multipart/form-data"}
