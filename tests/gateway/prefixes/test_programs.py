"""`ctx.export` and `lm.prefix`: what one program keeps, another one goes on from, if it may."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from engine.text.model import TextModel
from gateway.state.owned import owned_key
from tests.fakes import ScriptedEngine
from tests.gateway.prefixes.programs import EXPORT, IMPORT, code, run
from tests.gateway.runs.workers import Worker

CAUGHT = """
try:
    ctx = await lm.context("the handbook")
    return {"id": await ctx.export(**request.args)}
except Exception as error:
    return {"error": type(error).__name__ + " " + str(error)}
"""


async def test_what_a_program_exports_another_worker_s_program_goes_on_from(
    engine: ScriptedEngine, model: TextModel, here: Worker, there: Worker
) -> None:
    made = await run(here.ann, EXPORT, name="handbook/v1.0")
    assert made["id"].startswith("pfx_")
    assert engine.contexts.histories == {}
    for reference in ("handbook/v1.0", made["id"]):
        found = await run(there.ann, IMPORT, name=reference)
        assert found["length"] == made["length"]
        ids = model.tokenizer.encode("the handbook", add_special=False)
        assert engine.last.prompt_ids == [*ids, *model.tokenizer.encode(" says", add_special=False)]


async def test_exporting_again_moves_the_name_and_leaves_the_old_version_behind_its_id(here: Worker) -> None:
    first = await run(here.ann, EXPORT, name="h")
    longer = EXPORT.replace("the handbook", "the handbook, second edition")
    second = await run(here.ann, longer, name="h")
    assert (await run(here.ann, IMPORT, name="h"))["length"] == second["length"] != first["length"]
    assert (await run(here.ann, IMPORT, name=first["id"]))["length"] == first["length"]


@pytest.mark.parametrize(
    ("fields", "is_seen"),
    [
        ({"visibility": "private"}, False),
        ({"visibility": "tenant"}, False),
        ({}, False),
        ({"visibility": "shared"}, True),
        ({"visibility": "shared", "allow": ["somebody"]}, False),
    ],
)
async def test_nobody_else_sees_it_unless_it_is_shared(here: Worker, fields: dict[str, Any], is_seen: bool) -> None:
    made = await run(here.ann, EXPORT, name="h", **fields)
    assert await code(here.bob, IMPORT, name="h") == "LookupError prefix_not_found"
    assert (await run(here.bob, IMPORT, name="h", on_miss="none")) == {"none": True}
    if is_seen:
        assert (await run(here.bob, IMPORT, name=made["id"]))["length"] == made["length"]
    else:
        assert await code(here.bob, IMPORT, name=made["id"]) == "LookupError prefix_not_found"
    assert (await run(here.ann, IMPORT, name=made["id"]))["length"] == made["length"]


async def test_what_the_engine_has_lost_is_computed_again_or_told(engine: ScriptedEngine, here: Worker) -> None:
    made = await run(here.ann, EXPORT, name="h")
    engine.contexts.exports.clear()
    found = await run(here.ann, IMPORT, name="h")
    assert (found["length"], found["pending"]) == (made["length"], made["length"])
    assert await code(here.ann, IMPORT, name="h", on_miss="fail") == "RuntimeError prefix_lost"
    assert await run(here.ann, IMPORT, name="h", on_miss="none") == {"none": True}


async def test_a_prefix_of_another_model_is_refused(engine: ScriptedEngine, here: Worker, redis_url: str) -> None:
    made = await run(here.ann, EXPORT, name="h")
    with Redis.from_url(redis_url) as redis:
        redis.hset("{wye}:px:" + made["id"], "fingerprint", "another")
    assert await code(here.ann, IMPORT, name="h") == "ValueError fingerprint_mismatch"
    assert await run(here.ann, IMPORT, name="h", on_miss="none") == {"none": True}


async def test_a_prefix_whose_time_is_over_is_told_and_its_room_is_free(here: Worker, redis_url: str) -> None:
    made = [await run(here.ann, EXPORT, name=f"h{at}") for at in range(4)]
    assert await code(here.ann, CAUGHT, name="more") == "MemoryError limit_exceeded"
    with Redis.from_url(redis_url) as redis:
        for one in made:
            redis.hset("{wye}:px:" + one["id"], "expires_ms", 1)
            (order,) = redis.keys("{wye}:pxo:*")
            redis.zadd(order, {one["id"]: 1})
    assert await code(here.ann, IMPORT, name="h0") == "RuntimeError prefix_lost"
    await run(here.ann, EXPORT, name="more")
    assert await code(here.ann, IMPORT, name=made[0]["id"]) == "RuntimeError prefix_lost"
    assert await code(here.ann, IMPORT, name="h0") == "LookupError prefix_not_found"


async def test_a_use_keeps_it_for_as_long_again(engine: ScriptedEngine, here: Worker) -> None:
    await run(here.ann, EXPORT, name="h", ttl_s=100)
    assert list(engine.contexts.kept_ms.values()) == [100_000]
    engine.contexts.kept_ms.update(dict.fromkeys(engine.contexts.exports, 1))
    await run(here.ann, IMPORT, name="h")
    assert list(engine.contexts.kept_ms.values()) == [100_000]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 129,
        "A",
        "ä",
        "a b",
        "../x",
        "a/../b",
        "a/./b",
        "/a",
        "a/",
        "a//b",
        ".",
        "x/warm",
        "evict",
        "a\n",
        "a:b",
    ],
)
async def test_names_that_cannot_be_are_refused(here: Worker, name: str) -> None:
    assert await code(here.ann, CAUGHT, name=name) == "ValueError invalid_argument"


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": 10**8},
        {"ttl_s": "x"},
        {"visibility": "all"},
        {"allow": "x"},
        {"allow": [1]},
        {"allow": ["x"] * 65},
    ],
)
async def test_wishes_that_cannot_be_are_refused(here: Worker, fields: dict[str, Any]) -> None:
    assert await code(here.ann, CAUGHT, name="h", **fields) == "ValueError invalid_argument"


async def test_an_import_counts_as_a_context_of_the_run(here: Worker) -> None:
    await run(here.ann, EXPORT, name="h")
    body = """
    opened = 0
    try:
        while True:
            await lm.prefix("h")
            opened += 1
    except MemoryError as error:
        return {"error": str(error)}
    """
    assert await code(here.ann, body) == "limit_exceeded"


async def test_messages_behind_an_import_are_written_as_behind_the_messages_that_were_exported(
    engine: ScriptedEngine, here: Worker
) -> None:
    whole = """
    ctx = await lm.context([{"role": "system", "content": "Be brief."}])
    await ctx.export("h")
    await ctx.append(request.messages)
    return (await ctx.generate(max_tokens=2)).text
    """
    await run(here.ann, whole)
    expected = engine.last.prompt_ids
    await run(
        here.ann,
        """
        ctx = await lm.prefix("h")
        await ctx.append(request.messages)
        return (await ctx.generate(max_tokens=2)).text
        """,
    )
    assert engine.last.prompt_ids == expected


async def test_without_a_store_there_are_no_prefixes(engine: ScriptedEngine, model: TextModel) -> None:
    worker = Worker(engine, model, "")
    assert await code(worker.ann, CAUGHT, name="h") == "RuntimeError capability_missing"
    assert await code(worker.ann, IMPORT, name="h") == "RuntimeError capability_missing"
    await worker.close()


async def test_a_store_that_does_not_answer_is_told(engine: ScriptedEngine, model: TextModel) -> None:
    worker = Worker(engine, model, "redis://127.0.0.1:1/0")
    assert await code(worker.ann, CAUGHT, name="h") == "RuntimeError store_unavailable"
    assert await code(worker.ann, IMPORT, name="h") == "RuntimeError store_unavailable"
    await worker.close()


async def test_bytes_are_given_back(here: Worker, redis_url: str) -> None:
    made = await run(here.ann, EXPORT, name="h")
    service = here.services.prefixes
    record = await service.store.read(made["id"])
    assert record is not None
    with Redis.from_url(redis_url) as redis:
        assert int(redis.get(owned_key("pxs", record.owner)) or 0) > 0
        await service.delete(record)
        assert redis.get(owned_key("pxs", record.owner)) == b"0"
        assert [key for key in redis.keys("{wye}:px*") if b"pxs" not in key] == []
