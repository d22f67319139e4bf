"""An engine that says what a test tells it to, when the test tells it to.

    engine = ScriptedEngine()
    script = engine.expect()                       # for the next request
    script.emit([1, 2, 3])                         # events may be queued before or after the request arrives
    script.emit([4], finish=FinishReason.LENGTH)

It keeps `EngineClient`'s promises (validation, ordered events, merged backlog is not needed here) and records what
callers do: `script.request`, `script.is_closed`, `script.stopped`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from engine.client import validate_request
from engine.contexts.commands import ContextCommand, ContextInfo
from engine.errors import EngineStopped
from engine.kv.commands import AccountCommand
from engine.kv.overview import KVMap
from engine.leases.lease import LeaseRevoked
from engine.request import (
    ConstraintSpec,
    EngineInfo,
    ErrorReport,
    FinishReason,
    GenerateRequest,
    GenerationDefaults,
    Proposal,
    TokenEvent,
    TokenLogprob,
)
from engine.stats import AccountCharge, EngineStats
from engine.streams import is_between
from tests.scripted_contexts import ScriptedContexts


def engine_info(vocab_size: int = 1000, max_model_len: int = 4096) -> EngineInfo:
    """A small engine's description."""
    return EngineInfo(
        epoch="epoch-1",
        model_path="scripted",
        architecture="llama",
        fingerprint="0" * 32,
        vocab_size=vocab_size,
        hidden_size=4,
        eos_token_ids=(2,),
        max_model_len=max_model_len,
        page_size=16,
        num_pages=max_model_len // 16,
        page_bytes=1024,
        device="cpu",
        step="torch",
        dtype="float32",
        kv_dtype="float32",
        attention_backend="scripted",
        defaults=GenerationDefaults(),
        num_parameters=1,
        load_s=0.0,
    )


class Script:
    """One request's events, as the test wants them; also the stream that the caller reads.

    Attributes:
        request: The request, once it was submitted.
        num_closes: How often the caller closed the stream.
        stopped: Sequences that the caller ended one by one.
        num_read: Events handed out.
        history: Of the request's context, if it has one.
        advances: What the caller of a stepped request said.
        guesses: What the caller of a request expected that waits for that.
    """

    def __init__(self) -> None:
        self.request: GenerateRequest | None = None
        self.num_closes = 0
        self.stopped: list[int] = []
        self.num_read = 0
        self.history: list[int] | None = None
        self.advances: list[tuple[int | None, int, list[int]]] = []
        self.guesses: list[tuple[list[int], list[Proposal]]] = []
        self._items: deque[TokenEvent | Exception | None] = deque()
        self._arrived = asyncio.Event()
        self._take: Callable[[TokenEvent], None] | None = None
        self._is_awaited = False
        self._raised: Exception | None = None

    @property
    def is_closed(self) -> bool:
        """True once the caller has closed the stream."""
        return self.num_closes > 0

    def emit(
        self,
        token_ids: Sequence[int] = (),
        *,
        index: int = 0,
        finish: FinishReason | None = None,
        stop_token_id: int | None = None,
        logprobs: Sequence[TokenLogprob] = (),
        prompt_logprobs: list[TokenLogprob] | None = None,
        num_cached_tokens: int | None = None,
        error: ErrorReport | None = None,
    ) -> None:
        """Queues one event."""
        event = TokenEvent(
            request_id="",
            index=index,
            token_ids=list(token_ids),
            logprobs=list(logprobs),
            finish_reason=finish,
            stop_token_id=stop_token_id,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=num_cached_tokens,
            error=error,
        )
        self._put(event)

    def emit_each(self, token_ids: Sequence[int], *, finish: FinishReason | None = None, index: int = 0) -> None:
        """Queues one event a token; the last one carries `finish`."""
        for at, token_id in enumerate(token_ids):
            self.emit([token_id], index=index, finish=finish if at == len(token_ids) - 1 else None)

    def die(self, error: Exception | None = None) -> None:
        """Queues the engine's death, or any other error of the stream."""
        self._put(error or EngineStopped("the engine process ended"))

    def end(self) -> None:
        """Ends the stream without a last event, as no engine should."""
        self._put(None)

    def __aiter__(self) -> Script:
        return self

    async def __anext__(self) -> TokenEvent:
        while not self._items:
            if self.is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            self._is_awaited = True
            try:
                await self._arrived.wait()
            finally:
                self._is_awaited = False
        item = self._items[0]
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            if item is self._raised:
                self._items.popleft()
            raise item
        self._items.popleft()
        self._count(item)
        return item

    def _count(self, event: TokenEvent) -> None:
        self.num_read += 1
        if self.history is not None:
            self.history += event.token_ids

    async def stop_sequence(self, index: int) -> None:
        """See `EventStream`; what is queued for the sequence is dropped."""
        self.stopped.append(index)
        kept = [item for item in self._items if not (isinstance(item, TokenEvent) and item.index == index)]
        self._items = deque(kept)

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """See `EventStream`; what follows is up to the test."""
        assert not num_taken
        self.advances.append((token_id, num_steps, list(banned)))

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """See `EventStream`; what follows is up to the test."""
        self.guesses.append((list(token_ids), list(proposals)))

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """See `EventStream`."""
        self._take = take

    async def aclose(self) -> None:
        """See `EventStream`."""
        self.num_closes += 1
        self._items.clear()
        self._arrived.set()

    def put(self, event: TokenEvent) -> None:
        """Queues one event as it is."""
        self._put(event)

    def _put(self, item: TokenEvent | Exception | None) -> None:
        if self._take is not None and self._is_awaited and isinstance(item, TokenEvent) and is_between(item):
            self._count(item)
            try:
                self._take(item)
                return
            except Exception as error:
                item = self._raised = error
        self._is_awaited = False
        self._items.append(item)
        self._arrived.set()


class ScriptedEngine:
    """An `EngineClient` whose answers are scripts, taken in the order in which they were made.

    Attributes:
        info: What it claims to be.
        stats: What it claims to have done.
        charges: What it claims that accounts owe.
        is_ready: Set it to False to play an engine that is gone.
        requests: Everything submitted.
        refusal: Raised by the next submissions, if set.
        contexts: Held contexts; they get the tokens of the scripts as those are read.
    """

    def __init__(self, info: EngineInfo | None = None) -> None:
        self.info = info or engine_info()
        self.stats = EngineStats()
        self.charges: dict[str, AccountCharge] = {}
        self.is_ready = True
        self.requests: list[GenerateRequest] = []
        self.refusal: Exception | None = None
        self.contexts = ScriptedContexts()
        self._scripts: deque[Script] = deque()

    def expect(self) -> Script:
        """Prepares the answer to the next request that has none yet."""
        script = Script()
        self._scripts.append(script)
        return script

    async def submit(self, request: GenerateRequest) -> Script:
        """See `EngineClient`; a request that no script was made for is a mistake of the test."""
        history = self.contexts.history(request.context_id) if request.context_id else None
        validate_request(request, self.info, len(history or ()))
        if self.refusal is not None:
            raise self.refusal
        if not self.is_ready:
            raise EngineStopped("the scripted engine is gone")
        assert self._scripts, "no script for this request"
        self.requests.append(request)
        script = self._scripts.popleft()
        script.request = request
        script.history = history
        return script

    def tell(self, command: ContextCommand | AccountCommand) -> None:
        """See `EngineClient`; what is told of accounts changes nothing here."""
        if self.is_ready and isinstance(command, ContextCommand):
            self.contexts.obey(command)

    def watch_lease(self, lease_id: str, told: Callable[[LeaseRevoked], None]) -> None:
        """See `EngineClient`; no lease is ever revoked here."""

    def unwatch_lease(self, lease_id: str) -> None:
        """See `EngineClient`."""

    async def describe_context(self, context_id: str) -> ContextInfo:
        """See `EngineClient`."""
        if not self.is_ready:
            raise EngineStopped("the scripted engine is gone")
        return self.contexts.describe(context_id)

    async def compile(self, constraint: ConstraintSpec) -> None:
        """See `EngineClient.compile`."""
        if not self.is_ready:
            raise EngineStopped("no engine is connected")

    async def describe_kv(self) -> KVMap:
        """See `EngineClient`."""
        if not self.is_ready:
            raise EngineStopped("the scripted engine is gone")
        return self.contexts.draw(self.info.num_pages)

    async def close(self) -> None:
        """See `EngineClient`."""
        self.is_ready = False
