"""Prometheus metrics: what requests took, kept here, and what the engine does, read from its stats at each scrape.

Several workers share one port, so a scrape reaches any of them. Request metrics are therefore kept in files that all
workers share (`PROMETHEUS_MULTIPROC_DIR`, see `gateway.settings.WorkerSettings`) and every worker reports the sum of
all. Engine metrics come from the one engine and are the same whoever is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from engine.errors import EngineStopped
from engine.request import EngineInfo
from engine.stats import AccountCharge, EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The times at which counters were made would double the exposition and tell nothing.
disable_created_metrics()  # type: ignore[no-untyped-call]  # not annotated

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TPOT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)

MAX_ACCOUNTS = 20
"""Accounts that metrics name; labels without end would be the end of whoever scrapes them."""
OTHER_ACCOUNTS = "(other)"

_GAUGES = (
    ("wye_engine_running_sequences", "Sequences with KV on the device.", "num_running"),
    ("wye_engine_waiting_sequences", "Sequences that wait for admission.", "num_waiting"),
    ("wye_kv_pages", "Pages in the KV pool.", "num_pages"),
    ("wye_kv_used_pages", "Pages that some live sequence holds.", "num_used_pages"),
    ("wye_kv_cached_pages", "Pages that only the prefix cache holds.", "num_cached_pages"),
    ("wye_kv_host_pages", "Pages of host memory that hold KV.", "num_host_pages"),
    ("wye_kv_contexts", "Contexts that programs hold.", "num_contexts"),
    ("wye_kv_leases", "Contexts whose KV somebody wishes to keep.", "num_leases"),
)
_COUNTERS = (
    ("wye_engine_steps", "Steps run.", "num_steps"),
    ("wye_engine_prefill_tokens", "Prompt tokens computed; cache hits not counted.", "num_prefill_tokens"),
    ("wye_engine_decode_tokens", "Output tokens.", "num_decode_tokens"),
    ("wye_engine_forced_tokens", "Output tokens that a form left no choice about.", "num_forced_tokens"),
    ("wye_engine_drafted_tokens", "Tokens that drafters guessed ahead.", "num_drafted_tokens"),
    ("wye_engine_accepted_tokens", "Tokens that drafters guessed and that were right.", "num_accepted_tokens"),
    ("wye_prefix_cache_hit_tokens", "Prompt tokens taken from the prefix cache.", "num_cached_tokens"),
    ("wye_prefix_cache_query_tokens", "Prompt tokens of admitted requests, cached or not.", "num_prompt_tokens"),
    ("wye_engine_preemptions", "Sequences that gave their pages back and waited again.", "num_preemptions"),
    (
        "wye_engine_late_kernels",
        "Kernels first loaded while serving, which steps waited for.",
        "num_late_kernels",
    ),
    ("wye_kv_leases_revoked", "Leases that ended before their holders ended them.", "num_revoked"),
    ("wye_kv_contexts_demoted", "Contexts whose pages others needed.", "num_demoted"),
    ("wye_kv_saved_pages", "Pages copied to host memory.", "num_saved_pages"),
    ("wye_kv_restored_pages", "Pages copied back from host memory.", "num_restored_pages"),
)


class EngineNumbers(Protocol):
    """What metrics need of an engine."""

    @property
    def info(self) -> EngineInfo:
        """What it is. Raises `EngineStopped` while none is connected."""
        ...

    @property
    def stats(self) -> EngineStats:
        """Its newest numbers."""
        ...

    @property
    def charges(self) -> Mapping[str, AccountCharge]:
        """What the KV of each account has come to."""
        ...

    @property
    def is_ready(self) -> bool:
        """True while one is connected."""
        ...


class Metrics:
    """Request metrics of this process, and the exposition of everything.

    Args:
        engine: Read at each scrape.
        worker: Index of this gateway process.
        shared_dir: Where all workers keep their request metrics; None if there is one worker.
    """

    def __init__(self, engine: EngineNumbers, worker: int = 0, shared_dir: Path | None = None) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._shared_dir = shared_dir
        self._engine_collector = EngineCollector(engine)
        self._http = Counter(
            "wye_http_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self._http_s = Histogram(
            "wye_http_request_seconds", "Request to last byte.", ("route",), buckets=_LATENCY_BUCKETS, registry=registry
        )
        active = Gauge(
            "wye_gateway_active_requests",
            "Requests in flight in one gateway process.",
            ("worker",),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._active = active.labels(str(worker))
        self._ttft_s = Histogram(
            "wye_time_to_first_token_seconds",
            "Acceptance of a generation to its first token.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._tpot_s = Histogram(
            "wye_time_per_output_token_seconds",
            "Mean time between tokens of one continuation.",
            buckets=_TPOT_BUCKETS,
            registry=registry,
        )
        self._tool_calls = Counter(
            "wye_tool_calls", "Calls of tools made by the server.", ("kind", "outcome"), registry=registry
        )
        self._tool_s = Histogram(
            "wye_tool_call_seconds",
            "A tool asked to its answer.",
            ("kind",),
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._generation_s = Histogram(
            "wye_generation_seconds",
            "Acceptance of a generation to its end.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._prompt_tokens = Histogram(
            "wye_prompt_tokens",
            "Prompt tokens of a generation, or of all embeddings of a request.",
            buckets=_TOKEN_BUCKETS,
            registry=registry,
        )
        self._completion_tokens = Histogram(
            "wye_completion_tokens", "Tokens of one continuation.", buckets=_TOKEN_BUCKETS, registry=registry
        )
        self._embeddings = Counter("wye_embeddings", "Embeddings made.", registry=registry)
        self._embedding_s = Histogram(
            "wye_embeddings_seconds",
            "Acceptance of a request for embeddings to its last one.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self._finished = Counter("wye_finished", "Continuations ended, by reason.", ("reason",), registry=registry)

    def observe_http(self, method: str, route: str, status: int, took_s: float) -> None:
        """Counts one finished HTTP request."""
        self._http.labels(method, route, str(status)).inc()
        self._http_s.labels(route).observe(took_s)

    def set_active(self, num_active: int) -> None:
        """Sets how many requests are in flight in this process."""
        self._active.set(num_active)

    def observe_first_token(self, took_s: float) -> None:
        """Notes the wait for the first token of a generation."""
        self._ttft_s.observe(took_s)

    def observe_end(self, reason: str, num_tokens: int, decode_s: float) -> None:
        """Notes the end of one continuation.

        Args:
            reason: `stop`, `length`, `abort` or `error`.
            num_tokens: Its tokens.
            decode_s: First to last token.
        """
        self._finished.labels(reason).inc()
        self._completion_tokens.observe(num_tokens)
        if num_tokens > 1:
            self._tpot_s.observe(decode_s / (num_tokens - 1))

    def observe_generation(self, num_prompt_tokens: int, took_s: float) -> None:
        """Notes a whole generation, all its continuations together."""
        self._prompt_tokens.observe(num_prompt_tokens)
        self._generation_s.observe(took_s)

    def observe_tool(self, kind: str, outcome: str, seconds: float) -> None:
        """Notes one call of a tool.

        Args:
            kind: `http`, `mcp` or `script`.
            outcome: `completed`, `tool_error`, `abandoned`, or the code of what went wrong.
            seconds: How long it took.
        """
        self._tool_calls.labels(kind, outcome).inc()
        self._tool_s.labels(kind).observe(seconds)

    def observe_embeddings(self, num_embeddings: int, num_prompt_tokens: int, took_s: float) -> None:
        """Notes all embeddings of a request."""
        self._embeddings.inc(num_embeddings)
        self._prompt_tokens.observe(num_prompt_tokens)
        self._embedding_s.observe(took_s)

    def expose(self) -> bytes:
        """Everything in Prometheus' text format."""
        registry = self._registry
        if self._shared_dir is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=str(self._shared_dir))  # type: ignore[no-untyped-call]  # not annotated
        engine = CollectorRegistry()
        engine.register(self._engine_collector)
        return generate_latest(registry) + generate_latest(engine)


class EngineCollector(Collector):
    """Turns the newest `EngineStats` into metrics."""

    def __init__(self, engine: EngineNumbers) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yields the engine's metrics as of now."""
        stats = self._engine.stats
        yield GaugeMetricFamily("wye_engine_up", "1 while an engine takes requests.", value=self._engine.is_ready)
        yield from self._info()
        for name, text, field in _GAUGES:
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))
        for name, text, field in _COUNTERS:
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        yield GaugeMetricFamily("wye_kv_usage_ratio", "Used pages over all pages.", value=_usage(stats))
        yield from self._accounts()
        yield GaugeMetricFamily("wye_engine_step_seconds", "Wall time of the last step.", value=stats.step_ms / 1000)
        finished = CounterMetricFamily("wye_engine_finished", "Sequences ended, by reason.", labels=("reason",))
        for reason, count in stats.num_finished.items():
            finished.add_metric((reason,), count)
        yield finished

    def _accounts(self) -> Iterator[Metric]:
        """What accounts hold: the largest by name, as many as a scrape can bear, and the rest together."""
        charges = sorted(self._engine.charges.values(), key=lambda charge: -charge.level_kib)
        resident = GaugeMetricFamily(
            "wye_kv_resident_kib", "KV that an account pays for, on the device and in host memory.", labels=("account",)
        )
        for charge in charges[:MAX_ACCOUNTS]:
            if charge.level_kib:
                resident.add_metric((charge.account,), charge.level_kib)
        rest = sum(charge.level_kib for charge in charges[MAX_ACCOUNTS:])
        if rest:
            resident.add_metric((OTHER_ACCOUNTS,), rest)
        yield resident
        charged = sum(charge.total_kib_ms for charge in charges) / 1000
        yield CounterMetricFamily("wye_kv_charged_kib_seconds", "KiB of KV times seconds, all accounts.", value=charged)

    def _info(self) -> Iterator[Metric]:
        try:
            info = self._engine.info
        except EngineStopped:
            return
        values = {
            "architecture": info.architecture,
            "attention_backend": info.attention_backend,
            "device": info.device,
            "dtype": info.dtype,
            "epoch": info.epoch,
            "step": info.step,
        }
        yield InfoMetricFamily("wye_engine", "What the engine is.", value=values)


def _usage(stats: EngineStats) -> float:
    return stats.num_used_pages / stats.num_pages if stats.num_pages else 0.0
