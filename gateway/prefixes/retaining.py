"""KV of requests that is kept for a while when they are over, for requests that begin the same.

A request that wants that runs on a context of its own, which is left to the engine afterwards, under a lease. Its
whole pages are in the prefix cache, where others of the same salt find them, and its account pays for them as long as
they are held, whatever becomes of this process. The answer says what was kept, and until when, or why nothing was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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

FIELD = "retention"
"""Of a request and of its answer."""

Reason = Literal["max_bytes", "quota", "engine"]
"""Why nothing is kept: it holds more than the request allows; its account may hold no more; the engine did not."""

_EXCLUDED: dict[str, tuple[object, ...]] = {"n": (1,), "best_of": (None, 1), "server_tools": ([],), "servers": ([],)}
_SHOWN = {"servers": "tools"}


@dataclass(frozen=True, slots=True)
class _Keeping:
    """One wish, and what it takes to fulfil it.

    Attributes:
        live: The context of the request.
        wish: What it wants.
        info: Of the engine.
        max_kept: Histories of one account that are kept at once.
        told: Of the answer: has the outcome afterwards.
    """

    live: LiveContext
    wish: RetentionWish
    info: EngineInfo
    max_kept: int
    told: dict[str, Any] = field(default_factory=dict)

    async def __call__(self) -> None:
        """Leaves the context to the engine, whatever comes of that."""
        live, wish = self.live, self.wish
        num_tokens, max_bytes = live.length, wish.max_bytes or MAX_BYTES
        try:
            kept = await live.hand_over(ttl_s=wish.ttl_s, max_bytes=max_bytes, value=wish.value, max_kept=self.max_kept)
        except (ValueError, EngineError) as error:
            log.info("the KV of a request is not kept: %s", error)
            self._tell(reason="engine")
            return
        finally:
            live.release()
        num_bytes = kept.num_pages * self.info.page_bytes
        if kept.length:
            self._tell(tokens=kept.length, num_bytes=num_bytes, expires_at=int(time.time() + wish.ttl_s))
            return
        needed = -(-num_tokens // self.info.page_size) * self.info.page_bytes
        self._tell(reason="max_bytes" if needed > max_bytes else "quota")

    def _tell(
        self, *, tokens: int = 0, num_bytes: int = 0, expires_at: int | None = None, reason: Reason | None = None
    ) -> None:
        status = "kept" if reason is None else "not_kept"
        self.told[FIELD] = {
            "status": status,
            "tokens": tokens,
            "bytes": num_bytes,
            "expires_at": expires_at,
            "reason": reason,
        }


class Retainer:
    """Has the engine keep what requests want to be kept.

    Args:
        runtime: The door to the model.
        max_ttl_s: For how long anything is kept at most.
        max_kept: Histories of one account that are kept at once; the oldest goes first.
    """

    def __init__(self, runtime: Runtime, *, max_ttl_s: float, max_kept: int) -> None:
        self._runtime = runtime
        self._max_ttl_s = max_ttl_s
        self._max_kept = max_kept

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
            raise UnsupportedParameter(FIELD, "A program keeps KV by itself, with `ctx.retain`.")
        for name, nothing in _EXCLUDED.items():
            if getattr(body, name, nothing[0]) not in nothing:
                shown = _SHOWN.get(name, name)
                raise UnsupportedParameter(shown, f"'{shown}' does not go with '{FIELD}'.")
        if isinstance(body, CompletionRequest) and len(body.prompt) != 1:
            raise BadRequest(f"With '{FIELD}' goes one prompt.", "prompt")
        if wish.ttl_s > self._max_ttl_s:
            message = f"'{FIELD}.ttl_s' must be at most {self._max_ttl_s:g} seconds."
            raise BadRequest(message, f"{FIELD}.ttl_s")

    def plan(
        self,
        body: SamplingFields | ResponseRequest,
        info: EngineInfo,
        payer: Payer,
        work: Work,
        told: dict[str, Any],
    ) -> Work:
        """The same work, on a context that is kept when it is over, if the request wants that.

        Args:
            body: The request.
            info: Of the engine.
            payer: Who pays.
            work: What is to be done, on a context already if it goes on from a prefix.
            told: Gets a field for the answer, once it is known what was kept.
        """
        wish = body.retention
        if wish is None or not _is_possible(work.prompt_ids, info):
            return work
        held = work.held or self._runtime.open_context(
            work.prompt_ids, account=payer.account, salt=payer.salt, adapter=info.adapter_of(body.model)
        )
        return replace(work, held=held, keep=_Keeping(held, wish, info, self._max_kept, told))


def _is_possible(prompt_ids: Sequence[int], info: EngineInfo) -> bool:
    """False for prompts that the engine is to refuse in its own words."""
    return bool(prompt_ids) and min(prompt_ids) >= 0 and max(prompt_ids) < info.vocab_size
