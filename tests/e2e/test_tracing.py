"""Traces of a running server, as a collector receives them."""

from __future__ import annotations

import gzip
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from loadtests.server import RunningServer, running_server
from tests.e2e.conftest import connect
from tests.gateway.wire import CHAT, chat

PATIENCE_S = 60.0
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PROGRAM = """
EXTENSION = {"name": "twice", "version": "1.0.0"}

async def main(request, lm):
    ctx = await lm.context(request.messages)
    await ctx.generate(max_tokens=3)
    generation = await ctx.generation(max_tokens=2)
    while not (await generation.step()).finished:
        pass
    return "done"
"""


class Collector:
    """A collector of traces: keeps every span that is sent to it."""

    def __init__(self) -> None:
        spans: queue.Queue[Span] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            spans.put(span)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._spans = spans
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def until(self, name: str) -> list[Span]:
        """All spans received since the last call, up to one of this name, which ends last."""
        found: list[Span] = []
        while not found or found[-1].name != name:
            found.append(self._spans.get(timeout=PATIENCE_S))
        return found

    @property
    def is_empty(self) -> bool:
        return self._spans.empty()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


class Service:
    """What a tool asks: tells the weather, and keeps the `traceparent` of each request."""

    def __init__(self) -> None:
        heard: queue.Queue[str | None] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                heard.put(self.headers["traceparent"])
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(b'"sunny"')

            def log_message(self, *args: object) -> None:
                pass

        self.heard = heard
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.fixture(scope="module")
def traced(
    tiny_model: Path,
    start_options: list[str],
    tmp_path_factory: pytest.TempPathFactory,
    collector: Collector,
    service: Service,
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("traced")
    tools = directory / "tools.json"
    tool = {"name": "weather", "kind": "http", "effect": "pure", "description": "x", "http": {"url": service.url}}
    tools.write_text(json.dumps({"tools": [tool]}))
    environment = {
        "OMP_NUM_THREADS": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "WYE_TOOLS_FILE": str(tools),
        "WYE_TRACE_ENDPOINT": collector.url,
    }
    log_path = directory / "log"
    with running_server(str(tiny_model), args=start_options, environment=environment, log_path=log_path) as running:
        yield running


def values(span: Span) -> dict[str, Any]:
    """Attributes of a span."""
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


async def test_a_request_is_a_span_below_its_callers_and_its_generation_is_one_below_it(
    traced: RunningServer, collector: Collector
) -> None:
    async with connect(traced) as client:
        answer = await client.post(CHAT, json=chat(max_tokens=4, ignore_eos=True), headers={"traceparent": CALLER})
        *_, generation, request = collector.until("chat org/tiny")  # the server has been asked whether it is there
    assert request.trace_id.hex() == generation.trace_id.hex() == CALLER.split("-")[1]
    assert request.parent_span_id.hex() == CALLER.split("-")[2]
    assert generation.parent_span_id == request.span_id
    assert answer.headers["traceparent"].split("-")[1:3] == [request.trace_id.hex(), request.span_id.hex()]
    assert request.kind == Span.SPAN_KIND_SERVER
    known = values(request)
    assert known["http.route"] == CHAT
    assert known["http.response.status_code"] == 200
    assert known["gen_ai.operation.name"] == "chat"
    assert known["wye.request_id"] == answer.headers["x-request-id"]
    usage = answer.json()["usage"]
    assert values(generation)["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert values(generation)["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 4
    assert [event.name for event in generation.events] == ["first token"]
    assert generation.start_time_unix_nano < generation.events[0].time_unix_nano <= generation.end_time_unix_nano


async def test_a_program_is_a_span_above_all_that_it_generates(traced: RunningServer, collector: Collector) -> None:
    async with connect(traced) as client:
        answer = await client.post(CHAT, json=chat(extension={"source": PROGRAM}))
        assert answer.json()["choices"][0]["message"]["content"] == "done"
        *below, request = collector.until("chat org/tiny")
    program = below[-1]
    assert program.name == "invoke_agent twice"
    assert program.parent_span_id == request.span_id
    assert [one.name for one in below] == ["generate", "generate", "invoke_agent twice"]
    assert {one.parent_span_id for one in below[:-1]} == {program.span_id}
    assert values(program)["wye.run_id"] == answer.json()["extension"]["run_id"]
    assert values(program)["gen_ai.usage.output_tokens"] == 5


async def test_a_tool_is_a_span_below_its_program_and_its_own_server_is_told(
    traced: RunningServer, collector: Collector, service: Service
) -> None:
    program = "async def main(request, lm):\n    return str(await lm.tool('weather'))\n"
    async with connect(traced) as client:
        answer = await client.post(CHAT, json=chat(extension={"source": program}))
        assert answer.status_code == 200, answer.text
        spans = collector.until("chat org/tiny")
    (call,) = [one for one in spans if one.name == "execute_tool weather"]
    (run,) = [one for one in spans if one.name.startswith("invoke_agent")]
    assert (call.kind, call.parent_span_id) == (Span.SPAN_KIND_CLIENT, run.span_id)
    heard = service.heard.get(timeout=PATIENCE_S)
    assert heard is not None
    assert heard.split("-")[1:3] == [call.trace_id.hex(), call.span_id.hex()]


async def test_the_span_of_a_stream_lasts_until_its_end(traced: RunningServer, collector: Collector) -> None:
    async with connect(traced) as client:
        answer = await client.post(CHAT, json=chat(max_tokens=5, ignore_eos=True, stream=True))
        generation, request = collector.until("chat org/tiny")
    assert answer.text.endswith("data: [DONE]\n\n")
    assert generation.parent_span_id == request.span_id
    assert values(generation)["gen_ai.usage.output_tokens"] == 5
    assert request.end_time_unix_nano >= generation.end_time_unix_nano


async def test_what_a_caller_does_not_trace_is_not_traced_and_probes_never_are(
    traced: RunningServer, collector: Collector
) -> None:
    async with connect(traced) as client:
        await client.post(CHAT, json=chat(), headers={"traceparent": CALLER[:-2] + "00"})
        await client.get("/ready")
        await client.get("/metrics")
        await client.get("/v1/models")
        (only,) = collector.until("GET")
    assert values(only)["http.route"] == "/v1/models"
    assert collector.is_empty


async def test_an_error_is_told_by_its_class_and_says_nothing_of_what_was_asked(
    traced: RunningServer, collector: Collector
) -> None:
    secret = "what nobody else may read"
    failing = f'async def main(request, lm):\n    raise ValueError("{secret}")\n'
    async with connect(traced) as client:
        answer = await client.post(CHAT, json=chat(extension={"source": failing}))
        assert secret in answer.json()["error"]["message"]
        program, request = collector.until("chat org/tiny")
    assert program.status.code == Status.STATUS_CODE_ERROR
    assert values(program)["error.type"] == "ScriptError"
    assert secret not in str(program) + str(request)


def test_bad_places_to_send_traces_to_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.settings import Settings

    monkeypatch.setenv("WYE_TRACE_ENDPOINT", "collector:4318")
    with pytest.raises(ValueError, match="http://"):
        Settings()
    monkeypatch.setenv("WYE_TRACE_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setattr("gateway.settings._is_installed", lambda *modules: False)
    with pytest.raises(ValueError, match=r"pip install 'wye\[tracing\]'"):
        Settings()
