"""Traces: one span a request, sent over OTLP/HTTP together with those that `extensions.tracing` makes below it.

    client ──traceparent──▶ chat smollm2-135m                  here: the whole request
                              ├─ generate                      one generation of the engine
                              └─ invoke_agent best_of_n        a program
                                   ├─ generate
                                   └─ execute_tool weather ──traceparent──▶ the tool's own server

Names and attributes follow https://opentelemetry.io/docs/specs/semconv/gen-ai/; trace context is W3C's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from extensions.tracing import mark_failed, span
from gateway.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

FLUSH_MS = 3000
"""Time that spans get to be sent when the process ends."""

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
_PROBES = frozenset({"/health", "/ping", "/ready", "/metrics"})
_W3C = TraceContextTextMapPropagator()


def start_tracing(settings: Settings) -> Callable[[], None]:
    """Begins to send traces, if the settings name somebody who takes them. Once a process.

    Returns:
        Sends what waits and ends it; may take `FLUSH_MS`.
    """
    if not settings.trace_endpoint:
        return _nothing
    # Imported here: most servers send no traces, and the exporter is an extra of the package.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"{settings.trace_endpoint.rstrip('/')}/v1/traces")
    provider = TracerProvider(
        sampler=_sampler(settings.trace_sample), resource=Resource.create({SERVICE_NAME: "wye"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def stop() -> None:
        provider.force_flush(FLUSH_MS)
        provider.shutdown()

    return stop


def describe_request(path: str, body: dict[str, Any]) -> None:
    """Names the current request's span after what is asked for, once that is known."""
    operation = _OPERATIONS.get(path)
    current = trace.get_current_span()
    if operation is None or not current.is_recording():
        return
    model = body.get("model")
    name = model[:256] if isinstance(model, str) else ""
    current.update_name(f"{operation} {name}".rstrip())
    current.set_attribute("gen_ai.operation.name", operation)
    current.set_attribute("gen_ai.provider.name", "wye")
    if name:
        current.set_attribute("gen_ai.request.model", name)


class TraceRequests:
    """ASGI middleware: a span around every request but probes, below that of a caller who sends `traceparent`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _PROBES:
            await self._app(scope, receive, send)
            return
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        with _below_caller(scope), span(scope["method"], attributes, SpanKind.SERVER) as current:

            async def send_with_context(message: Message) -> None:
                if message["type"] == "http.response.start":
                    carried: dict[str, str] = {}
                    _W3C.inject(carried)
                    headers = [(name.encode(), value.encode()) for name, value in carried.items()]
                    message["headers"] = [*message.get("headers", ()), *headers]
                    current.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        mark_failed(current, str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, send_with_context)
            finally:
                if (route := getattr(scope.get("route"), "path", None)) is not None:
                    current.set_attribute("http.route", route)
                if (request_id := scope.get("state", {}).get("request_id")) is not None:
                    current.set_attribute("wye.request_id", request_id)


@contextlib.contextmanager
def _below_caller(scope: Scope) -> Iterator[None]:
    names = (b"traceparent", b"tracestate")
    carried = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in names}
    token = attach(_W3C.extract(carried))
    try:
        yield
    finally:
        detach(token)


def _sampler(share: float) -> Sampler:
    """Some share of all traces: a caller's own flag can take a request out of it, but not into it."""
    from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult, TraceIdRatioBased

    class SharedSampler(Sampler):
        _share = TraceIdRatioBased(share)

        def should_sample(
            self,
            parent_context: Context | None,
            trace_id: int,
            name: str,
            kind: SpanKind | None = None,
            attributes: Attributes = None,
            links: Sequence[Link] | None = None,
            trace_state: TraceState | None = None,
        ) -> SamplingResult:
            parent = trace.get_current_span(parent_context).get_span_context()
            if parent.is_valid and not parent.trace_flags.sampled:
                return SamplingResult(Decision.DROP)
            return self._share.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

        def get_description(self) -> str:
            return f"SharedSampler({share:g})"

    return SharedSampler()


def _nothing() -> None:
    pass
