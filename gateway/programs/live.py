"""Programs that run now, in this process and in the others of the same server: told through Redis, once a second.

At the same beat the programs of tenants end that were suspended or archived: whoever asks the model is refused there,
but a program need not ask it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from extensions.programs.run import ProgramRun
from gateway.errors import QuotaStoreUnavailable
from gateway.state.store import PREFIX
from gateway.state.tenancy import TenancyStore
from gateway.tenancy.principal import TENANT_MARK
from gateway.tenancy.refusals import tenant_stopped

log = logging.getLogger(__name__)

PERIOD_S = 1.0
FORGOTTEN_S = 5
"""What a process told is not believed for longer: it may be dead."""

MAX_TOLD = 1000
"""Programs of one process that others hear of."""

_STOPPED = frozenset({"suspended", "archived"})
"""States of tenants for which nothing runs."""

_KEY = f"{PREFIX}live:"
_TELLERS = f"{PREFIX}live"
"""Sorted set: keys of the processes that tell something, by the time until which that holds; no search of all keys."""


class LivePrograms:
    """Knows what runs. Costs nothing while nothing does.

    Args:
        redis: Where processes tell each other; None if there is none, then each knows its own. Closed with this.
    """

    def __init__(self, redis: Redis | None) -> None:
        self._redis = redis
        self._tenants = None if redis is None else TenancyStore(redis)
        self._key = _KEY + uuid.uuid4().hex
        self._runs: dict[ProgramRun, str] = {}
        self._telling: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, run: ProgramRun, owner: str) -> None:
        """A program has begun; it is forgotten at its end.

        Args:
            run: The program.
            owner: Who pays for it.
        """
        self._runs[run] = owner
        run.on_end(lambda: self._forget(run))
        if self._redis is not None and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell(self._redis))

    def _forget(self, run: ProgramRun) -> None:
        self._runs.pop(run, None)

    async def all(self) -> list[dict[str, Any]]:
        """What runs anywhere on this server, longest first; of other processes, only what Redis tells."""
        found = self._own()
        if self._redis is not None:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                keys = cast("list[bytes]", await self._redis.zrangebyscore(_TELLERS, time.time(), "+inf"))
                others = [key for key in keys if key.decode() != self._key]
                for told in await self._redis.mget(others) if others else ():
                    found += json.loads(told) if told else []
        return sorted(found, key=lambda one: -float(one["wall_s"]))

    async def aclose(self) -> None:
        """Tells no more. Idempotent."""
        self._is_closed = True  # a cancellation may get lost inside of the client
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._redis is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._redis.aclose()

    async def _tell(self, redis: Redis) -> None:
        while not self._is_closed:
            told = self._own()[:MAX_TOLD]
            try:
                await self._end_stopped()
                async with redis.pipeline(transaction=True) as pipe:
                    now_s = time.time()
                    pipe.set(self._key, json.dumps(told), ex=FORGOTTEN_S)
                    pipe.zadd(_TELLERS, {self._key: now_s + FORGOTTEN_S})
                    pipe.zremrangebyscore(_TELLERS, "-inf", now_s)
                    await pipe.execute()
            except (RedisError, OSError, TimeoutError, QuotaStoreUnavailable) as error:
                log.debug("running programs were not told: %s", error)
            if not told and not self._runs:
                return
            await asyncio.sleep(PERIOD_S)

    async def _end_stopped(self) -> None:
        """Ends the programs of tenants that may run nothing any more."""
        assert self._tenants is not None
        for owner in {owner for owner in self._runs.values() if owner.startswith(TENANT_MARK)}:
            record = await self._tenants.tenant(owner)
            if record is None or record["state"] in _STOPPED:
                for run in [run for run, pays in self._runs.items() if pays == owner]:
                    run.end(tenant_stopped())

    def _own(self) -> list[dict[str, Any]]:
        return [_described(run, owner) for run, owner in self._runs.items()]


def _described(run: ProgramRun, owner: str) -> dict[str, Any]:
    used = run.usage
    return {
        "id": run.request.id,
        "program": run.program.name or run.program.digest[:12],
        "tenant": owner,
        "wall_s": round(used.wall_s, 3),
        "contexts": run.num_contexts,
        "generations": used.num_generations,
        "prompt_tokens": used.num_prompt_tokens,
        "completion_tokens": used.num_completion_tokens,
        "host_calls": used.num_host_calls,
    }
