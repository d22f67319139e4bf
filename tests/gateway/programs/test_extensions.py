"""Programs that are registered: versions, owners, names."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.wire import Body, chat, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/extensions"


def program(name: str, version: str, says: str) -> str:
    """A program that says something."""
    return (
        f'"""Says {says}."""\nEXTENSION = {{"name": "{name}", "version": "{version}"}}\n\n'
        f"async def main(request, lm):\n    return {says!r}\n"
    )


async def register(client: httpx.AsyncClient, source: str) -> Body:
    answer = await client.post(PATH, json={"source": source})
    assert answer.status_code == 200, answer.text
    body: Body = answer.json()
    return body


async def says(client: httpx.AsyncClient, name: str) -> str:
    answer = await whole(client, chat(extension={"name": name}))
    content: str = answer["choices"][0]["message"]["content"]
    return content


async def test_a_version_is_kept_and_runs_by_its_name(client: httpx.AsyncClient) -> None:
    kept = await register(client, program("greeter", "1.2.0", "hello"))
    assert kept["id"] == "greeter@1.2.0"
    assert kept["object"] == "extension"
    assert kept["description"] == "Says hello."
    assert kept["digest"].startswith("sha256:")
    for name in ("greeter", "greeter@1", "greeter@1.2", "greeter@1.2.0"):
        assert await says(client, name) == "hello"
    got = (await client.get(f"{PATH}/greeter")).json()
    assert got == kept | {"source": program("greeter", "1.2.0", "hello")}


async def test_the_newest_version_that_is_meant_runs(client: httpx.AsyncClient) -> None:
    for version in ("1.9.0", "1.10.0", "2.0.0-rc.1", "0.5.0"):
        await register(client, program("grown", version, version))
    assert await says(client, "grown") == "1.10.0"
    assert await says(client, "grown@1.9") == "1.9.0"
    assert await says(client, "grown@0") == "0.5.0"
    assert await says(client, "grown@2.0.0-rc.1") == "2.0.0-rc.1"
    answer = await client.post("/v1/chat/completions", json=chat(extension={"name": "grown@2"}))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "extension_not_found"
    listed = (await client.get(PATH, params={"name": "grown"})).json()
    assert [one["version"] for one in listed["data"]] == ["2.0.0-rc.1", "1.10.0", "1.9.0", "0.5.0"]
    behind = (await client.get(PATH, params={"name": "grown", "after": "grown@1.10.0"})).json()
    assert [one["version"] for one in behind["data"]] == ["1.9.0", "0.5.0"]
    answer = await client.get(PATH, params={"name": "grown", "after": "grown@7.0.0"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
    answer = await client.delete(f"{PATH}/grown@7.0.0")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "extension_id")


async def test_a_version_never_changes(client: httpx.AsyncClient) -> None:
    first = await register(client, program("fixed", "1.0.0", "one"))
    assert await register(client, program("fixed", "1.0.0", "one")) == first
    answer = await client.post(PATH, json={"source": program("fixed", "1.0.0", "two")})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "version_exists"
    assert await says(client, "fixed") == "one"


async def test_a_model_can_be_a_program(client: httpx.AsyncClient) -> None:
    await register(client, program("talker", "1.0.0", "as a model"))
    answer = await whole(client, chat(model="ext:talker@1"))
    assert answer["model"] == "ext:talker@1"
    assert answer["choices"][0]["message"]["content"] == "as a model"
    refusal = await client.post("/v1/chat/completions", json=chat(model="ext:talker", extension={"name": "talker"}))
    assert refusal.status_code == 400
    assert refusal.json()["error"]["param"] == "extension"
    refusal = await client.post("/v1/chat/completions", json=chat(model="ext:Bad Name"))
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "model")


async def test_what_one_key_registers_is_not_there_for_another(
    client: httpx.AsyncClient, stranger: httpx.AsyncClient
) -> None:
    await register(client, program("secret", "1.0.0", "ann's"))
    assert (await stranger.get(f"{PATH}/secret")).status_code == 404
    listed = (await stranger.get(PATH, params={"limit": 100})).json()
    assert not listed["has_more"]
    assert "secret" not in {one["name"] for one in listed["data"]}
    assert (await stranger.delete(f"{PATH}/secret@1.0.0")).status_code == 404
    await register(stranger, program("secret", "1.0.0", "bob's"))
    assert (await says(client, "secret"), await says(stranger, "secret")) == ("ann's", "bob's")


async def test_programs_are_listed_in_pages(stranger: httpx.AsyncClient) -> None:
    names = [f"listed_{number}" for number in range(5)]
    for name in names:
        await register(stranger, program(name, "1.0.0", name))
    seen, after = [], ""
    while True:
        page = (await stranger.get(PATH, params={"limit": 2, "after": after})).json()
        seen += [one["name"] for one in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        if not page["has_more"]:
            break
        after = page["last_id"]
    assert [name for name in seen if name in names] == names
    assert seen == sorted(seen)


async def test_a_version_can_be_forgotten(client: httpx.AsyncClient) -> None:
    for version in ("1.0.0", "1.1.0"):
        await register(client, program("gone", version, version))
    answer = await client.delete(f"{PATH}/gone@1.1.0")
    assert answer.json() == {"id": "gone@1.1.0", "object": "extension.deleted", "deleted": True}
    assert await says(client, "gone") == "1.0.0"
    await client.delete(f"{PATH}/gone")
    assert (await client.get(f"{PATH}/gone")).status_code == 404
    assert (await client.delete(f"{PATH}/gone")).status_code == 404


async def test_too_many_versions_are_refused(client: httpx.AsyncClient) -> None:
    for number in range(6):
        await register(client, program("many", f"1.0.{number}", str(number)))
    answer = await client.post(PATH, json={"source": program("many", "1.0.6", "6")})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "extensions_full"
    await client.delete(f"{PATH}/many@1.0.0")
    await register(client, program("many", "1.0.6", "6"))


@pytest.mark.parametrize("source", ["async def main(request, lm):\n    return 1\n", "x", "EXTENSION = {'name': 3}\n"])
async def test_what_cannot_be_registered_is_refused(client: httpx.AsyncClient, source: str) -> None:
    answer = await client.post(PATH, json={"source": source})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "program_invalid"
    assert answer.json()["error"]["param"] == "source"


async def test_a_check_tells_every_problem_and_runs_nothing(client: httpx.AsyncClient) -> None:
    good = (await client.post(f"{PATH}/check", json={"source": program("x", "1.0.0", "x")})).json()
    assert good["valid"] is True
    assert good["extension"]["name"] == "x"
    bad = "async def main(request, lm):\n    request.a\n    lm.b\n"
    answer = (await client.post(f"{PATH}/check", json={"source": bad})).json()
    assert (answer["valid"], answer["extension"]) == (False, None)
    assert [(one["line"], one["column"]) for one in answer["diagnostics"]] == [(2, 5), (3, 5)]
    assert (await client.get(f"{PATH}/x")).status_code == 404


async def test_what_a_program_needs_is_checked_where_it_is_to_run(client: httpx.AsyncClient) -> None:
    source = program("needy", "1.0.0", "x").replace('"1.0.0"', '"1.0.0", "capabilities": ["store", "adapters"]')
    place = (2, source.split("\n")[1].index('"adapters"') + 1, "capability_missing")
    checked = (await client.post(f"{PATH}/check", json={"source": source})).json()
    assert (checked["valid"], checked["extension"]) == (False, None)
    assert [(one["line"], one["column"], one["rule"]) for one in checked["diagnostics"]] == [place]
    # Kept all the same: other servers of the same Redis may have it, and this one after its next start.
    assert (await register(client, source))["capabilities"] == ["store", "adapters"]
    for extension, param in (({"source": source}, "extension.source"), ({"name": "needy"}, "extension.name")):
        answer = await client.post("/v1/chat/completions", json=chat(extension=extension))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "capability_missing", param)
        assert [(one["line"], one["column"], one["rule"]) for one in error["diagnostics"]] == [place]
    there = source.replace('"adapters"', '"children", "inbox"').replace("1.0.0", "1.1.0")
    assert (await client.post(f"{PATH}/check", json={"source": there})).json()["valid"] is True
    unknown = await client.post(PATH, json={"source": source.replace("adapters", "wings")})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "capability_missing")


async def test_without_a_store_programs_come_with_each_request(client: httpx.AsyncClient) -> None:
    services = client._transport.app.state.services  # type: ignore[attr-defined]
    finder = services.programs.finder
    store, finder._store = finder._store, None
    try:
        answer = await client.post(PATH, json={"source": program("kept", "1.0.0", "x")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert (await client.get(PATH)).status_code == 200
        said = await whole(client, chat(extension={"source": program("kept", "1.0.0", "sent along")}))
        assert said["choices"][0]["message"]["content"] == "sent along"
    finally:
        finder._store = store
