"""/v1/files: kept as they are, found by their owner alone, bounded, and gone without a trace."""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from starlette.types import Message

from engine.text.model import TextModel
from gateway.routes.uploads import harmless_name
from tests.fakes import ScriptedEngine, scripted_client
from tests.gateway.batches.conftest import Start
from tests.gateway.batches.wire import FILES, get, left_on_disk, upload
from tests.gateway.wire import error_of

DAY_S = 24 * 3600
BOUNDARY = "b0undary"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(*parts: tuple[str, bytes], end: str = "--\r\n") -> bytes:
    """A form, part by part: what its header says, and its value."""
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; "
    body = b"".join((head + said + "\r\n\r\n").encode() + value + b"\r\n" for said, value in parts)
    return body + f"--{BOUNDARY}{end}".encode()


def uploaded_bytes(directory: Path) -> int:
    """What is on disk of uploads that are on their way."""
    return sum(path.stat().st_size for path in directory.rglob("uploads/*"))


PURPOSE = ('name="purpose"', b"batch")
FILE = ('name="file"; filename="a.jsonl"', b"content\n")


async def test_a_file_is_kept_told_and_sent_as_it_is(client: httpx.AsyncClient) -> None:
    data = bytes(range(256)) * 5000
    made = await upload(client, data, name="in put.jsonl")
    assert made.keys() >= {"id", "object", "bytes", "created_at", "filename", "purpose", "status", "expires_at"}
    assert (made["object"], made["bytes"], made["filename"]) == ("file", len(data), "in put.jsonl")
    assert made["expires_at"] == made["created_at"] + 30 * DAY_S
    assert await get(client, f"{FILES}/{made['id']}") == made
    content = await client.get(f"{FILES}/{made['id']}/content")
    assert content.content == data
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["content-disposition"] == "attachment; filename*=UTF-8''in%20put.jsonl"
    assert content.headers["x-content-type-options"] == "nosniff"
    head = await client.head(f"{FILES}/{made['id']}/content")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(data)), b"")
    part = await client.get(f"{FILES}/{made['id']}/content", headers={"range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, data[1:4])


async def test_only_files_for_batches_go_by_themselves_unless_told(client: httpx.AsyncClient) -> None:
    kept = await upload(client, b"x", purpose="user_data")
    assert kept["expires_at"] is None
    told = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    short = await upload(client, b"x", purpose="user_data", **told)
    assert short["expires_at"] == short["created_at"] + 3600


async def test_lists_are_walked_in_both_orders_and_by_purpose(client: httpx.AsyncClient) -> None:
    made = [(await upload(client, b"x", purpose=purpose))["id"] for purpose in ("batch", "vision") * 3]

    async def walk(**params: Any) -> list[str]:
        found: list[str] = []
        while True:
            page = (await client.get(FILES, params={**params, **({"after": found[-1]} if found else {})})).json()
            found += [item["id"] for item in page["data"]]
            assert page["object"] == "list"
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
            if not page["has_more"]:
                return found

    assert await walk() == made[::-1]
    assert await walk(order="asc", limit=4) == made
    assert await walk(order="desc", limit=2) == made[::-1]
    assert await walk(order="asc", limit=1, purpose="vision") == made[1::2]
    assert (await client.get(FILES, params={"purpose": "evals"})).json()["data"] == []


@pytest.mark.parametrize(
    ("params", "param"),
    [({"limit": "0"}, "limit"), ({"limit": "10001"}, "limit"), ({"order": "up"}, "order"), ({"after": "no"}, "after")],
)
async def test_a_wrong_list_is_refused(client: httpx.AsyncClient, params: dict[str, str], param: str) -> None:
    assert error_of(await client.get(FILES, params=params), 400)["param"] == param


async def test_what_is_deleted_is_gone_from_disk_too(client: httpx.AsyncClient, tmp_path: Path) -> None:
    made = await upload(client, b"x")
    assert left_on_disk(tmp_path) == [made["id"]]
    answer = await client.delete(f"{FILES}/{made['id']}")
    assert answer.json() == {"id": made["id"], "object": "file", "deleted": True}
    assert left_on_disk(tmp_path) == []
    for path in (made["id"], f"{made['id']}/content"):
        assert error_of(await client.get(f"{FILES}/{path}"), 404)["param"] == "file_id"
    error_of(await client.delete(f"{FILES}/{made['id']}"), 404)
    assert (await get(client, FILES))["data"] == []


async def test_what_one_key_has_is_not_there_for_another(start: Start) -> None:
    client = start(api_keys=("k1", "k2")).client
    error_of(await client.post(FILES, files={"file": b"x"}, data={"purpose": "batch"}), 401)
    client.headers["authorization"] = "Bearer k1"
    made = await upload(client, b"x")
    client.headers["authorization"] = "Bearer k2"
    error_of(await client.get(f"{FILES}/{made['id']}"), 404)
    error_of(await client.get(f"{FILES}/{made['id']}/content"), 404)
    error_of(await client.delete(f"{FILES}/{made['id']}"), 404)
    assert (await get(client, FILES))["data"] == []
    error_of(await client.get(FILES, params={"after": made["id"]}), 400)
    client.headers["authorization"] = "Bearer k1"
    assert (await get(client, FILES))["data"] == [made]


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([FILE], "purpose"),
        ([PURPOSE], "file"),
        ([('name="purpose"', b"world domination"), FILE], "purpose"),
        ([('name="purpose"', b"batch_output"), FILE], "purpose"),
        ([PURPOSE, ('name="file"; filename="a"', b"")], "file"),
        ([PURPOSE, FILE, FILE], "file"),
        ([PURPOSE, PURPOSE, FILE], "purpose"),
        ([PURPOSE, FILE, ('name="x"', b"x" * 5000)], "x"),
        ([PURPOSE, FILE, *((f'name="{n}"', b"x") for n in range(40))], None),
        ([PURPOSE, FILE, ('name="expires_after[seconds]"', b"3600")], "expires_after[anchor]"),
        ([PURPOSE, FILE, ('name="expires_after[anchor]"', b"created_at")], "expires_after[seconds]"),
        *(
            (
                [
                    PURPOSE,
                    FILE,
                    ('name="expires_after[anchor]"', b"created_at"),
                    ('name="expires_after[seconds]"', seconds),
                ],
                "expires_after[seconds]",
            )
            for seconds in (b"3599", b"2592001", b"-1", b"1e4", b"", b"9" * 50, "３６００".encode())
        ),
    ],
)
async def test_a_wrong_form_is_refused_and_leaves_nothing(
    client: httpx.AsyncClient, tmp_path: Path, parts: list[tuple[str, bytes]], param: str | None
) -> None:
    answer = await client.post(FILES, content=form(*parts), headers=FORM)
    assert error_of(answer, 400)["param"] == param
    assert left_on_disk(tmp_path) == []


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"purpose": "batch"}', {"content-type": "application/json"}, 415),
        (form(PURPOSE, FILE), {}, 415),
        (form(PURPOSE, FILE), {"content-type": "multipart/form-data"}, 400),
        (form(PURPOSE, FILE), {"content-type": "multipart/form-data; boundary=" + "b" * 300}, 400),
        (form(PURPOSE, FILE), {"content-type": "multipart/form-data; boundary=other"}, 400),
        (form(PURPOSE, FILE, end=""), FORM, 400),
        (form(PURPOSE, FILE)[:-40], FORM, 400),
        (b"", FORM, 400),
        (b"\x00\xff" * 500, FORM, 400),
        (f"--{BOUNDARY}\r\n{'a' * 9000}: b\r\n\r\n".encode(), FORM, 400),
        (b"not gzip", {**FORM, "content-encoding": "gzip"}, 400),
        (form(PURPOSE, FILE), {**FORM, "content-encoding": "br"}, 415),
    ],
)
async def test_what_is_no_form_is_refused_and_leaves_nothing(
    client: httpx.AsyncClient, tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    error_of(await client.post(FILES, content=body, headers=headers), status)
    assert left_on_disk(tmp_path) == []
    assert (await client.get("/health")).status_code == 200


async def test_other_routes_take_no_forms(client: httpx.AsyncClient) -> None:
    error_of(await client.post("/v1/batches", content=form(PURPOSE), headers=FORM), 415)


async def test_a_compressed_upload_is_unpacked_and_held_to_the_same_size(start: Start, tmp_path: Path) -> None:
    client = start(max_file_bytes=100_000).client
    headers = {**FORM, "content-encoding": "gzip"}
    answer = await client.post(FILES, content=gzip.compress(form(PURPOSE, FILE)), headers=headers)
    content = await client.get(f"{FILES}/{answer.json()['id']}/content")
    assert content.content == FILE[1]
    bomb = gzip.compress(form(PURPOSE, (FILE[0], b"\0" * 100_001)))
    assert error_of(await client.post(FILES, content=bomb, headers=headers), 413)["code"] == "request_too_large"
    assert left_on_disk(tmp_path) == [answer.json()["id"]]


async def test_the_order_of_the_parts_does_not_matter(client: httpx.AsyncClient) -> None:
    for parts in ([PURPOSE, FILE], [FILE, PURPOSE], [('name="else"', b"x"), FILE, PURPOSE]):
        answer = await client.post(FILES + "/", content=form(*parts), headers=FORM)
        assert (answer.status_code, answer.json()["bytes"]) == (200, len(FILE[1]))


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_file_that_is_too_large_is_refused_before_it_is_all_there(
    start: Start, tmp_path: Path, is_declared: bool
) -> None:
    client = start(max_file_bytes=1_000_000).client
    num_sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal num_sent
        yield form(PURPOSE, FILE, end="\r\n")[: -len(f"\r\n--{BOUNDARY}\r\n")]
        for _ in range(1000):
            num_sent += 1
            yield b"x" * 10_000

    headers = {**FORM, "content-length": "10000000"} if is_declared else FORM
    error_of(await client.post(FILES, content=body(), headers=headers), 413)
    assert num_sent <= (0 if is_declared else 101)
    assert left_on_disk(tmp_path) == []


async def test_an_upload_goes_to_disk_as_it_comes(start: Start, tmp_path: Path) -> None:
    client = start().client
    on_disk: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        yield form(PURPOSE, FILE, end="\r\n")[: -len(f"\r\n--{BOUNDARY}\r\n")]
        for _ in range(100):
            yield b"x" * 100_000
            on_disk.append(uploaded_bytes(tmp_path))
        yield f"\r\n--{BOUNDARY}--\r\n".encode()

    answer = await client.post(FILES, content=body(), headers=FORM)
    assert answer.json()["bytes"] == len(FILE[1]) + 10_000_000
    # Never more than some pieces are held in memory.
    assert all(size > number * 100_000 - 500_000 for number, size in enumerate(on_disk))


async def test_a_client_that_leaves_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    worker = start()
    begun = form(PURPOSE, FILE, end="\r\n")[: -len(f"\r\n--{BOUNDARY}\r\n")] + b"x" * 1_000_000
    messages: list[Message] = [{"type": "http.request", "body": begun, "more_body": True}, {"type": "http.disconnect"}]
    seen: list[list[str]] = []
    sent: list[Message] = []

    async def receive() -> Message:
        seen.append(left_on_disk(tmp_path))
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    head = [(name.encode(), value.encode()) for name, value in FORM.items()]
    scope = {"type": "http", "method": "POST", "path": FILES, "headers": head, "query_string": b"", "client": None}
    await worker.app(scope, receive, send)
    assert sent[0]["status"] == 499
    assert [len(names) for names in seen] == [1, 1]
    assert left_on_disk(tmp_path) == []
    assert worker.services.lifecycle.num_active == 0


async def test_files_are_bounded_by_count_and_by_bytes(start: Start, tmp_path: Path) -> None:
    client = start(max_files=2, max_files_bytes=100_000).client
    first = await upload(client, b"x" * 60_000)
    too_large = await client.post(FILES, files={"file": b"x" * 50_000}, data={"purpose": "batch"})
    assert error_of(too_large, 400)["code"] == "storage_limit_exceeded"
    await upload(client, b"x" * 40_000)
    too_many = await client.post(FILES, files={"file": b"x"}, data={"purpose": "batch"})
    assert error_of(too_many, 400)["code"] == "too_many_files"
    assert len(left_on_disk(tmp_path)) == 2
    await client.delete(f"{FILES}/{first['id']}")
    await upload(client, b"x" * 60_000)


async def test_uploads_at_the_same_time_share_the_room(start: Start, tmp_path: Path) -> None:
    client = start(max_files_bytes=1_000_000).client

    async def one() -> int:
        answer = await client.post(FILES, files={"file": b"x" * 600_000}, data={"purpose": "batch"})
        return answer.status_code

    assert sorted(await asyncio.gather(*(one() for _ in range(4))))[1:] == [400, 400, 400]
    assert len(left_on_disk(tmp_path)) <= 1


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a.jsonl", "a.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\x.txt", "x.txt"),
        ("a\x00b\r\nc\u202ed", "abcd"),
        ("", "file"),
        ("..", ".."),
        ("/", "file"),
        ("x" * 5000, "x" * 255),
        ("Grüße 🎉.txt", "Grüße 🎉.txt"),
    ],
)
def test_a_name_is_only_a_label(name: str, label: str) -> None:
    assert harmless_name(name) == label


async def test_a_hostile_name_touches_nothing(client: httpx.AsyncClient, tmp_path: Path) -> None:
    part = ('name="file"; filename="../../../evil"', b"x")
    made = (await client.post(FILES, content=form(PURPOSE, part), headers=FORM)).json()
    assert made["filename"] == "evil"
    assert left_on_disk(tmp_path) == [made["id"]]
    assert "evil" not in left_on_disk(tmp_path.parent)


async def test_strange_ids_are_not_found(client: httpx.AsyncClient) -> None:
    for file_id in ("..", "%2e%2e%2fx", "file-%00", "x" * 5000):
        answer = await client.get(f"{FILES}/{file_id}/content")
        assert answer.status_code in (404, 405), answer.text


async def test_what_is_over_its_time_is_not_there_and_swept_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    real_time = time.time
    monkeypatch.setattr("gateway.routes.files.time.time", lambda: real_time() - 3600)
    told = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    made = await upload(worker.client, b"x", **told)
    monkeypatch.undo()
    error_of(await worker.client.get(f"{FILES}/{made['id']}"), 404)
    assert (await get(worker.client, FILES))["data"] == []
    assert left_on_disk(tmp_path) == [made["id"]]
    await worker.services.files.sweep([])
    assert left_on_disk(tmp_path) == []


async def test_what_killed_processes_left_is_swept_up_and_nothing_else(
    start: Start, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    kept = await upload(worker.client, b"x")
    bytes_ = await worker.services.files.bytes()
    bytes_.path("file-lost").write_bytes(b"x")
    root = bytes_.path("any").parents[1]
    (root / "uploads" / "half").write_bytes(b"x")
    for name in ("batch_lost", "batch_open"):
        bytes_.batch_directory(name).mkdir()
    await worker.services.files.sweep(["batch_open"])
    assert len(left_on_disk(tmp_path)) == 3
    monkeypatch.setattr("gateway.state.file_bytes._STALE_S", -1.0)
    with Redis.from_url(redis_url) as redis:
        redis.delete("{wye}:f_sweep")
    await worker.services.files.sweep(["batch_open"])
    assert left_on_disk(tmp_path) == [kept["id"]]
    assert os.listdir(root / "batches") == ["batch_open"]


async def test_a_full_disk_is_told(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = start().client

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.state.file_bytes.Draft.write", full)
    answer = await client.post(FILES, files={"file": b"x"}, data={"purpose": "batch"})
    assert "No space left" in error_of(answer, 503)["message"]
    assert left_on_disk(tmp_path) == []


async def test_without_a_store_it_says_so(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model) as client:
        for answer in (
            await client.get(FILES),
            await client.get("/v1/batches"),
            await client.post(FILES, files={"file": b"x"}, data={"purpose": "batch"}),
        ):
            assert "keeps no files" in error_of(answer, 503)["message"]
