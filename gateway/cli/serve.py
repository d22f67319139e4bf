"""`wye serve`: one command from nothing to a server that answers."""

from __future__ import annotations

import enum
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.console import TransferProgress, messages, parse_bytes
from gateway.cli.options import (
    DEFAULT_HOME,
    DEFAULT_MODEL,
    EndpointOption,
    HomeOption,
    OfflineOption,
    TokenOption,
    open_store,
    pull_options,
)

if TYPE_CHECKING:
    from engine.config import AdapterSource, EngineConfig
    from engine.sources.options import PullOptions
    from engine.sources.store import ModelStore
    from gateway.settings import Settings


class Weights(enum.StrEnum):
    """Formats of weights in memory."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    INT8 = "int8"
    FP8 = "fp8"


class KVDtype(enum.StrEnum):
    """Formats of K and V."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    INT8 = "int8"
    FP8 = "fp8"


class Step(enum.StrEnum):
    """What computes a step."""

    AUTO = "auto"
    NATIVE = "native"
    CUDA = "cuda"
    TORCH = "torch"


class AttentionScores(enum.StrEnum):
    """Whether programs may read what rows attend to."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class PoolingChoice(enum.StrEnum):
    """Hidden states that make an embedding."""

    AUTO = "auto"
    MEAN = "mean"
    LAST = "last"


class LogLevel(enum.StrEnum):
    """Least severe log line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise typer.BadParameter(f"{text!r} is no device; write auto, cpu, cuda or cuda:N")
    return text


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


_ENGINE = "Engine"
_GATEWAY = "Gateway"
_MODELS = "Models"
_OPTIONS = {
    "adapters": "--adapter",
    "api_keys": "--api-key",
    "cors_origins": "--cors-origin",
    "drain_s": "--drain",
    "model_names": "--served-model-name",
}
"""Options that are not called as their settings are."""


def serve(
    model: Annotated[
        str, typer.Argument(help="Catalog or stored name, hf: or pypi: reference, Hugging Face directory, GGUF file.")
    ] = DEFAULT_MODEL,
    host: Annotated[
        str | None,
        typer.Option(envvar="WYE_HOST", help="Address to listen on. Default: 127.0.0.1.", rich_help_panel=_GATEWAY),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            envvar="WYE_PORT",
            min=0,
            max=65535,
            help="TCP port; 0 takes a free one. Default: 8000.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(envvar="WYE_WORKERS", min=1, help="Gateway processes. Default: 1.", rich_help_panel=_GATEWAY),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name clients use; may be repeated. Default: the model's own.", rich_help_panel=_GATEWAY),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="Adapter (LoRA, DoRA, IA3) to serve as a model of that name; may be repeated. Default: WYE_ADAPTERS.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Key that clients must send; may be repeated. WYE_API_KEYS is safer.", rich_help_panel=_GATEWAY
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin of web pages that may call; may be repeated. Default: *.", rich_help_panel=_GATEWAY),
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds that requests get to finish at a stop. Default: 30.", rich_help_panel=_GATEWAY
        ),
    ] = None,
    pooling: Annotated[
        PoolingChoice | None,
        typer.Option(
            envvar="WYE_POOLING",
            help="Tokens that make an embedding. Default: auto, what the model's files say, else the mean of all.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    reranker: Annotated[
        str | None,
        typer.Option(
            envvar="WYE_RERANKER",
            metavar="auto|none|NO,YES",
            help="Words with which the model judges documents, such as no,yes. Default: auto, what its files say.",
            rich_help_panel=_GATEWAY,
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="Least severe log line. Default: info.", rich_help_panel=_GATEWAY)
    ] = None,
    device: Annotated[
        str, typer.Option(callback=_device, help="auto, cpu, cuda or cuda:N.", rich_help_panel=_ENGINE)
    ] = "auto",
    weights: Annotated[
        Weights,
        typer.Option(
            envvar="WYE_WEIGHTS",
            help="Format of the weights in memory; what int8 and fp8 cost in quality is in docs/performance.md.",
            rich_help_panel=_ENGINE,
        ),
    ] = Weights.AUTO,
    step: Annotated[
        Step,
        typer.Option(
            envvar="WYE_STEP",
            help="What computes a step; auto is the device's own step where it can be had, else torch.",
            rich_help_panel=_ENGINE,
        ),
    ] = Step.AUTO,
    attention: Annotated[
        str, typer.Option(help="Attention backend of torch; `wye doctor` lists them.", rich_help_panel=_ENGINE)
    ] = "auto",
    attention_scores: Annotated[
        AttentionScores,
        typer.Option(
            envvar="WYE_ATTENTION_SCORES",
            help="Let programs read attention, and change sites without an adapter. The native step then holds the "
            "weights twice: auto allows 2 GiB.",
            rich_help_panel=_ENGINE,
        ),
    ] = AttentionScores.AUTO,
    kv_dtype: Annotated[
        KVDtype,
        typer.Option(
            envvar="WYE_KV_DTYPE",
            help="Format of K and V; auto is never int8 or fp8, which the native step does not have.",
            rich_help_panel=_ENGINE,
        ),
    ] = KVDtype.AUTO,
    kv_bytes: Annotated[
        int | None,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            help="Memory for the KV pool, e.g. 2GiB. Default: a share of what is free.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    kv_pages: Annotated[
        int | None, typer.Option(min=1, help="Pages of the KV pool, instead of --kv-bytes.", rich_help_panel=_ENGINE)
    ] = None,
    kv_host_bytes: Annotated[
        int | None,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            envvar="WYE_KV_HOST_BYTES",
            help="Host memory for leased contexts whose pages others need, e.g. 4GiB. Default: none.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of one sequence. Default: the model's own limit.", rich_help_panel=_ENGINE),
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, help="Sequences that run at once.", rich_help_panel=_ENGINE)
    ] = 256,
    max_batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one step. Default: suits the device.", rich_help_panel=_ENGINE)
    ] = None,
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Keep no finished prompts.", rich_help_panel=_ENGINE)
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="WYE_THREADS",
            help="Threads of a CPU step. Default: the cores we may use.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    token: TokenOption = None,
    endpoint: EndpointOption = None,
    offline: OfflineOption = False,
) -> None:
    """Serve a model over the OpenAI API; fetch it first when it is not here.

    Every gateway setting is also an environment variable, see docs/settings.md. Ctrl-C lets running requests finish.
    """
    from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
    from engine.cuda.caches import kernels_directory

    if kv_bytes is not None and kv_pages is not None:
        raise typer.BadParameter("--kv-bytes and --kv-pages exclude each other")
    settings = read_settings(
        host=host,
        port=port,
        workers=workers,
        model_names=tuple(served_model_name) if served_model_name else None,
        adapters=tuple(adapter) if adapter else None,
        api_keys=tuple(api_key) if api_key else None,
        cors_origins=tuple(cors_origin) if cors_origin else None,
        drain_s=drain,
        pooling=pooling.value if pooling else None,
        reranker=reranker,
        log_level=log_level.value if log_level else None,
    )
    warnings = _check_environment(settings)
    from gateway.listening import bind_socket

    with bind_socket(settings.host, settings.port) as listener:
        path, name = _find_model(open_store(home), model, pull_options(token, endpoint, offline))
        config = EngineConfig(
            model=str(path),
            device=device,
            weights=weights.value,
            step=step.value,
            attention=attention,
            attention_scores=attention_scores.value,
            max_model_len=max_model_len,
            kv=KVConfig(
                num_pages=kv_pages,
                pool_bytes=kv_bytes,
                prefix_cache=not no_prefix_cache,
                host_bytes=kv_host_bytes or 0,
                dtype=kv_dtype.value,
            ),
            scheduling=SchedulingConfig(max_num_seqs=max_num_seqs, max_batch_tokens=max_batch_tokens),
            parallel=ParallelConfig(num_threads=threads),
            adapters=_adapters(settings),
            kernel_dir=str(kernels_directory(home.expanduser())),
        )
        if not settings.model_names:
            settings = settings.model_copy(update={"model_names": (name,)})
        _check_names(settings)
        raise typer.Exit(_run(settings, config, path, home.expanduser() / "state", listener, warnings))


def _adapters(settings: Settings) -> tuple[AdapterSource, ...]:
    """Adapters for the engine; their paths hold wherever it is told to work."""
    from engine.config import AdapterSource

    paths = {name: Path(path).expanduser() for name, path in settings.adapter_paths.items()}
    for name, path in paths.items():
        if not path.is_dir():
            raise typer.BadParameter(f"--adapter {name}: {path}: no such directory")
    return tuple(AdapterSource(name=name, path=str(path.resolve())) for name, path in paths.items())


def _check_names(settings: Settings) -> None:
    from gateway.models import ServedModels

    try:
        ServedModels(settings.model_names, list(settings.adapter_paths))
    except ValueError as error:
        raise typer.BadParameter(f"--adapter: {error}") from None


def read_settings(**given: Any) -> Settings:
    """Settings of the environment, with options in their place where given.

    Raises:
        typer.BadParameter: One is not allowed; the message names its option or variable.
    """
    from pydantic import ValidationError

    from gateway.settings import Settings

    try:
        return Settings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "settings"
        option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
        named = option if given.get(field) is not None else f"WYE_{field.upper()}"
        raise typer.BadParameter(f"{named}: {first['msg'].removeprefix('Value error, ')}") from None


def _check_environment(settings: Settings) -> list[str]:
    """Refuses a file of tools that no worker could use; returns what else somebody should know of the environment."""
    import os

    from gateway.cli.variables import ReadVariables, unread_variables

    environ, warnings = ReadVariables(os.environ), []
    if settings.tools_file:
        from extensions.tools.egress import EgressPolicy
        from gateway.tools.file import ToolsFileError, load_tools
        from gateway.tools.reach import reach_warnings

        try:
            entries = load_tools(Path(settings.tools_file).expanduser(), environ)
        except ToolsFileError as error:
            raise typer.BadParameter(f"WYE_TOOLS_FILE: {error}") from None
        egress = EgressPolicy.read(settings.tool_hosts, settings.tool_networks)
        warnings = [f"tool {line}" for line in reach_warnings(entries.values(), egress)]
    return [*unread_variables(os.environ, environ.names), *warnings]


def _find_model(store: ModelStore, reference: str, options: PullOptions) -> tuple[Path, str]:
    """Path of a model and the name it is served under; fetches what can be fetched and is not here."""
    from engine.sources.reference import HubReference, PackageReference, parse_reference

    parsed = parse_reference(reference)
    stored = store.find(reference)
    if stored is None and isinstance(parsed, HubReference | PackageReference):
        messages().print(f"{reference} is not here yet; fetching it", markup=False)
        stored = store.pull(reference, TransferProgress(), options)
    path = store.resolve(reference).resolve()  # right in the children too, wherever they are told to work
    return path, stored.name if stored is not None else path.stem


def _run(
    settings: Settings,
    config: EngineConfig,
    path: Path,
    state_dir: Path,
    listener: socket.socket,
    warnings: Sequence[str],
) -> int:
    from engine.process import EngineProcess
    from gateway.children import EngineHandle
    from gateway.cli.reporter import reporter_for
    from gateway.serve import ServePlan
    from gateway.serve import serve as supervise

    def make_engine(address: str) -> EngineHandle:
        logs_json = settings.log_format == "json"
        return EngineProcess(config, address, log_level=settings.log_level.upper(), logs_json=logs_json)

    plan = ServePlan(settings=settings, model_path=path, make_engine=make_engine, state_dir=state_dir)
    with reporter_for(settings) as reporter:
        for line in warnings:
            reporter.warn(line)
        return supervise(plan, listener, reporter)
