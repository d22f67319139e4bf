"""HTTP tools against a real service."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import psutil
import pytest

from extensions.tools import http
from extensions.tools.box import ToolBox
from extensions.tools.catalog import ToolResult
from extensions.tools.errors import (
    ToolArgumentsInvalid,
    ToolFailed,
    ToolOutcomeUnknown,
    ToolTimeout,
)
from extensions.tools.spec import ToolSpec
from tests.extensions.tools.conftest import CALLER
from tests.extensions.tools.service import Service

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}


def spec(service: Service, path: str, **more: Any) -> ToolSpec:
    """A tool of the service."""
    http = {"url": service.url + path, **more.pop("http", {})}
    return ToolSpec.from_wire({"name": "tool", "kind": "http", "http": http, **more}, environ={"KEY": "s3cret-value"})


async def call(box: ToolBox, tool: ToolSpec, operation_id: str = "op_1", **arguments: Any) -> ToolResult:
    """Calls it as everybody here does."""
    return await box.call(tool, arguments, operation_id=operation_id, caller=CALLER)


async def test_arguments_have_their_place_in_the_path_and_the_rest_is_the_query(service: Service, box: ToolBox) -> None:
    tool = spec(service, "/weather/{city}?units=c", http={"method": "GET"}, parameters=CITY, effect="pure")
    result = await call(box, tool, city="São Paulo/../x?a=b", days=3)
    assert result.value == {"city": "São Paulo/../x?a=b", "degrees": 21}
    method, path, headers, _ = service.calls[0]
    assert (method, path) == ("GET", "/weather/S%C3%A3o%20Paulo%2F..%2Fx%3Fa%3Db?units=c&days=3")
    assert headers["idempotency-key"] == "op_1"


async def test_a_post_carries_the_arguments_as_json_and_the_operation_by_its_id(service: Service, box: ToolBox) -> None:
    tool = spec(service, "/echo", parameters=CITY)
    result = await call(box, tool, "op_7", city="Lyon")
    assert result.has_json
    assert not result.is_error
    assert result.json["given"] == {"city": "Lyon"}
    assert result.json["headers"]["idempotency-key"] == "op_7"
    assert result.ms > 0


async def test_arguments_that_do_not_fit_the_schema_are_never_sent(service: Service, box: ToolBox) -> None:
    tool = spec(service, "/echo", parameters=CITY)
    with pytest.raises(ToolArgumentsInvalid, match="days") as caught:
        await call(box, tool, city="Lyon", days="three")
    assert caught.value.param == "arguments.days"
    with pytest.raises(ToolArgumentsInvalid):
        await call(box, tool, city=float("nan"))
    assert service.calls == []


@pytest.mark.parametrize("city", ["", ".", "..", "%2e%2E", "%2e"])
async def test_an_argument_cannot_lead_a_path_elsewhere(service: Service, box: ToolBox, city: str) -> None:
    tool = spec(service, "/weather/{city}", parameters=CITY)
    if "%" in city:
        # Escaped again, it is a name like any other.
        assert (await call(box, tool, city=city)).json["city"] == city
        return
    with pytest.raises(ToolArgumentsInvalid):
        await call(box, tool, city=city)
    assert service.calls == []


@pytest.mark.parametrize(("path", "method"), [("/weather/{city}", "POST"), ("/weather", "GET")])
async def test_arguments_that_are_too_long_for_an_address_are_never_sent(
    service: Service, box: ToolBox, path: str, method: str
) -> None:
    tool = spec(service, path, http={"method": method}, parameters=CITY)
    with pytest.raises(ToolArgumentsInvalid, match="too long"):
        await call(box, tool, city="x" * 100_000)
    assert not service.calls


async def test_secrets_reach_the_service_and_nobody_else(service: Service, box: ToolBox) -> None:
    headers = {"Authorization": "Bearer env", "X-Key": "env:KEY"}
    tool = spec(service, "/echo", http={"headers": headers})
    result = await call(box, tool, note="s3cret-value is what I guess")
    assert service.calls[0][2]["x-key"] == "s3cret-value"
    assert "s3cret-value" not in result.text
    assert "s3cret-value" not in repr((result.json, tool, tool.to_wire()))
    assert result.json["headers"]["x-key"] == "***"


async def test_an_answer_is_read_only_as_far_as_it_may_be_long(service: Service, box: ToolBox) -> None:
    result = await call(box, spec(service, "/long", max_output_bytes=1001))
    assert result.is_cut
    assert result.text == "é" * 500


async def test_a_failure_that_the_service_tells_is_a_result(service: Service, box: ToolBox) -> None:
    result = await call(box, spec(service, "/fails"))
    assert result.is_error
    assert result.text == "HTTP 404: no such order"


@pytest.mark.parametrize("path", ["/redirects", "/lies", "/compressed"])
async def test_redirects_lies_and_compressed_answers_are_no_answers(service: Service, box: ToolBox, path: str) -> None:
    with pytest.raises(ToolFailed):
        await call(box, spec(service, path))
    assert len(service.calls) == 1


async def test_no_answer_in_time_is_unknown_if_the_call_could_have_done_something(
    service: Service, box: ToolBox
) -> None:
    await call(box, spec(service, "/echo"))
    with pytest.raises(ToolOutcomeUnknown, match="may have done its work"):
        await call(box, spec(service, "/slow", effect="once", timeout_s=2))
    assert len(service.calls) == 2


async def test_no_answer_in_time_is_a_timeout_if_it_could_not(service: Service, box: ToolBox) -> None:
    with pytest.raises(ToolTimeout):
        await call(box, spec(service, "/slow", effect="pure", timeout_s=0.2))


async def test_waiting_for_a_turn_counts_as_time_and_nothing_was_sent(service: Service, box: ToolBox) -> None:
    tool = spec(service, "/slow", effect="once", max_parallel=1)
    first = asyncio.create_task(call(box, tool))
    await asyncio.wait_for(service.called.wait(), 60)
    with pytest.raises(ToolTimeout):
        await call(box, msgspec.structs.replace(tool, timeout_s=0.1))
    service.release.set()
    assert (await first).text == "done"
    assert len(service.calls) == 1


async def test_whoever_gives_a_call_up_closes_its_connection(service: Service, box: ToolBox) -> None:
    task = asyncio.create_task(call(box, spec(service, "/slow")))
    await asyncio.wait_for(service.called.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(service.given_up.wait(), 60)


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(("effect", "error", "num_calls"), [("pure", ToolFailed, 2), ("once", ToolOutcomeUnknown, 1)])
async def test_a_lost_connection_is_tried_again_only_where_that_does_no_harm(
    box: ToolBox, effect: str, error: type[Exception], num_calls: int
) -> None:
    seen = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        await _hang_up(reader, writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        tool = ToolSpec.from_wire({"name": "t", "kind": "http", "http": {"url": url}, "effect": effect}, environ={})
        with pytest.raises(error):
            await call(box, tool)
    assert len(seen) == num_calls


async def test_a_service_that_is_not_there_was_not_asked(box: ToolBox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    tool = ToolSpec.from_wire({"name": "t", "kind": "http", "http": {"url": url}, "effect": "once"}, environ={})
    with pytest.raises(ToolFailed, match="cannot be reached"):
        await call(box, tool)


async def test_connections_that_nobody_uses_are_closed(
    service: Service, box: ToolBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_S", 0.05)
    tool = spec(service, "/echo", effect="pure")
    await call(box, tool)
    held = psutil.Process().net_connections("tcp")
    port = int(service.url.rpartition(":")[2])
    assert [one for one in held if one.raddr and one.raddr.port == port]
    async with asyncio.timeout(20):
        while [one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == port]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await call(box, tool)).has_json
