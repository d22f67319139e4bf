"""Spans of what a request has the model, scripts and tools do: OpenTelemetry, under the names of its GenAI conventions.

Only the interface is used here, which does nothing, and costs next to nothing, until the process that runs us sets up
an exporter (`gateway.tracing`). What is said and generated is never recorded, only how much of it and how long it took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.context import attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

__all__ = ["GenerationSpan", "SpanKind", "kept_span", "mark_failed", "span", "trace_headers", "tracer"]

tracer = trace.get_tracer("wye")

_W3C = TraceContextTextMapPropagator()

Attributes = Mapping[str, AttributeValue]


@contextmanager
def span(name: str, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL) -> Iterator[Span]:
    """A span around some work, and the parent of those begun in it; an exception marks it by its class.

    Args:
        name: As the conventions have it: the operation and what it is done to.
        attributes: Known from the start.
        kind: `CLIENT` where another server does the work.
    """
    # The message of an exception may hold what somebody said, so its class alone is kept.
    with tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except BaseException as error:
            mark_failed(current, type(error).__name__)
            raise


def mark_failed(current: Span, kind: str) -> None:
    """Says that what a span stands for has failed.

    Args:
        current: The span.
        kind: Of error: a class or a code.
    """
    current.set_attribute("error.type", kind)
    current.set_status(Status(StatusCode.ERROR))


def trace_headers() -> dict[str, str]:
    """Headers that let another server go on with the trace of now; none where nothing is traced."""
    carried: dict[str, str] = {}
    _W3C.inject(carried)
    return carried


def kept_span() -> Callable[[], AbstractContextManager[None]]:
    """What has another task work below the span of now: to be entered there."""
    known = get_current()

    @contextmanager
    def below() -> Iterator[None]:
        token = attach(known)
        try:
            yield
        finally:
            detach(token)

    return below


class GenerationSpan:
    """One generation, from its acceptance by the engine to its end.

    Args:
        num_prompt_tokens: Of its history.
        num_choices: Continuations that it makes.
    """

    def __init__(self, num_prompt_tokens: int, num_choices: int = 1) -> None:
        self._span = tracer.start_span("generate")
        self._is_recording = self._span.is_recording()
        self._has_first = False
        if self._is_recording:
            self._span.set_attribute("gen_ai.usage.input_tokens", num_prompt_tokens)
            self._span.set_attribute("gen_ai.request.choice.count", num_choices)

    def note_token(self) -> None:
        """The engine sent something; the first time is worth an event."""
        if not self._has_first:
            self._has_first = True
            self._span.add_event("first token")

    def end(self, num_tokens: int, num_cached_tokens: int) -> None:
        """Nothing more comes. Idempotent.

        Args:
            num_tokens: Generated, all continuations together.
            num_cached_tokens: Of the history, that needed no computing.
        """
        if self._is_recording:
            self._is_recording = False
            self._span.set_attribute("gen_ai.usage.output_tokens", num_tokens)
            self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", num_cached_tokens)
            self._span.end()
