"""KV of requests that is kept for a while when they are over, for requests that begin the same.

A request that wants that runs on a context of its own, which is held with a lease afterwards. Its whole pages are in
the prefix cache, where others of the same salt find them, and its account pays for them as long as they are held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.errors import EngineError
from engine.request import EngineInfo
from extensions.live_context import LiveContext
from extensions.runtime import Runtime
from gateway.errors import BadRequest, UnsupportedParameter
from gateway.generations import Work
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.responses import ResponseRequest
from gateway.schemas.retention import RetentionWish
from gateway.schemas.sampling import SamplingFields
from gateway.tenancy.payer import Payer

log = logging.getLogger(__name__)

MAX_BYTES = 2**50
"""What a wish without a budget holds for."""

_EXCLUDED: dict[str, tuple[object, ...]] = {"n": (1,), "best_of": (None, 1), "server_tools": ([],), "servers": ([],)}
_SHOWN = {"servers": "tools"}


@dataclass(slots=True, eq=False)
class _Kept:
    """One history that is held.

    Attributes:
        live: Its context.
        salt: Of its pages.
        task: Lets go of it in the end.
    """

    live: LiveContext
    salt: str
    task: asyncio.Task[None] | None = None

    def covers(self, other: _Kept) -> bool:
        """Whether another history is the beginning of this one, so that holding it is of no more use."""
        is_like = (self.salt, self.live.adapter) == (other.salt, other.live.adapter)
        return is_like and self.live.token_ids[: other.live.length] == other.live.token_ids


class Retainer:
    """Holds what requests want to be kept, in one gateway process. Belongs to one event loop.

    Args:
        runtime: The door to the model.
        max_ttl_s: For how long anything is held at most.
        max_kept: Histories of one account that are held at once; the oldest goes first.
    """

    def __init__(self, runtime: Runtime, *, max_ttl_s: float, max_kept: int) -> None:
        self._runtime = runtime
        self._max_ttl_s = max_ttl_s
        self._max_kept = max_kept
        self._kept: defaultdict[str, list[_Kept]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def check(self, body: SamplingFields | ResponseRequest, *, is_program: bool) -> None:
        """Refuses what cannot be kept.

        Raises:
            BadRequest: It is to be kept for too long.
            UnsupportedParameter: It has several answers, or a program makes it.
        """
        wish = body.retention
        if wish is None:
            return
        if is_program:
            raise UnsupportedParameter("retention", "A program keeps KV by itself, with `ctx.retain`.")
        for name, nothing in _EXCLUDED.items():
            if getattr(body, name, nothing[0]) not in nothing:
                shown = _SHOWN.get(name, name)
                raise UnsupportedParameter(shown, f"'{shown}' does not go with 'retention'.")
        if isinstance(body, CompletionRequest) and len(body.prompt) != 1:
            raise BadRequest("With 'retention' goes one prompt.", "prompt")
        if wish.ttl_s > self._max_ttl_s:
            message = f"'retention.ttl_s' must be at most {self._max_ttl_s:g} seconds."
            raise BadRequest(message, "retention.ttl_s")

    def plan(self, body: SamplingFields | ResponseRequest, info: EngineInfo, payer: Payer, work: Work) -> Work:
        """The same work, on a context that is held when it is over, if the request wants that.

        Args:
            body: The request.
            info: Of the engine.
            payer: Who pays.
            work: What is to be done, on a context already if it goes on from a prefix.
        """
        wish = body.retention
        if wish is None or not _is_possible(work.prompt_ids, info):
            return work
        held = work.held or self._runtime.open_context(
            work.prompt_ids, account=payer.account, salt=payer.salt, adapter=info.adapter_of(body.model)
        )

        def keep() -> None:
            self._keep(_Kept(held, payer.salt), payer.account, wish)

        return replace(work, held=held, keep=keep)

    async def aclose(self) -> None:
        """Lets go of all of it. Idempotent."""
        tasks = [one.task for several in self._kept.values() for one in several if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self, kept: _Kept, account: str, wish: RetentionWish) -> None:
        self._kept[account].append(kept)
        kept.task = asyncio.create_task(self._hold(kept, account, wish))
        # Not in the task itself: one that is cancelled before it has begun does nothing at all.
        kept.task.add_done_callback(lambda _: self._let_go(kept, account))

    async def _hold(self, kept: _Kept, account: str, wish: RetentionWish) -> None:
        """Holds one history until its time is over."""
        live = kept.live
        try:
            # Computes the last token, and has all whole pages known to the prefix cache.
            await live.prefill()
            max_bytes = wish.max_bytes or MAX_BYTES
            await live.retain(ttl_s=wish.ttl_s, max_bytes=max_bytes, value=wish.value, on_pressure="tokens")
        except (ValueError, EngineError) as error:
            log.info("the KV of a request is not kept: %s", error)
            return
        for other in self._superfluous(kept, account):
            assert other.task is not None
            other.task.cancel()
        await asyncio.sleep(wish.ttl_s)

    def _superfluous(self, kept: _Kept, account: str) -> list[_Kept]:
        """What need not, or can no longer, be held beside a new history."""
        others = [one for one in self._kept[account] if one is not kept]
        num_over = len(others) + 1 - self._max_kept
        return [one for place, one in enumerate(others) if place < num_over or kept.covers(one)]

    def _let_go(self, kept: _Kept, account: str) -> None:
        kept.live.release()
        self._kept[account].remove(kept)
        if not self._kept[account]:
            del self._kept[account]


def _is_possible(prompt_ids: Sequence[int], info: EngineInfo) -> bool:
    """False for prompts that the engine is to refuse in its own words."""
    return bool(prompt_ids) and min(prompt_ids) >= 0 and max(prompt_ids) < info.vocab_size
