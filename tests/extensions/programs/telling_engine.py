"""A scripted engine that tells of several steps together, as the engine does of those that it has computed ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from engine.request import Distribution, FinishReason, GenerateRequest, TokenEvent
from tests.fakes import ScriptedEngine, ScriptedStream, distribution_of


class Answer(NamedTuple):
    """What the reader said of what it was shown."""

    token_id: int | None
    num_steps: int
    banned: frozenset[int]
    num_taken: int


class TellingStream(ScriptedStream):
    """Shows as many steps of a stepped request at a time as `TellingEngine` says."""

    def __init__(self, engine: TellingEngine, request: GenerateRequest) -> None:
        self._num_told = engine.num_told
        self._told: asyncio.Queue[Answer] = asyncio.Queue()
        self._last_shown: Sequence[int] = ()
        super().__init__(engine, request)

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """Goes on with a stepped request."""
        self._told.put_nowait(Answer(token_id, num_steps, frozenset(banned), num_taken))

    async def aclose(self) -> None:
        """Ends the request, once it has heard all that was said of it."""
        if not self._told.empty():
            answer = self._told.get_nowait()
            assert answer.token_id is not None
            ids = [*self._last_shown[: answer.num_taken], answer.token_id]
            self._engine.contexts.histories.get(self._request.context_id, []).extend(ids)
        await super().aclose()

    async def _play_steps(self, index: int) -> None:
        request, end = self._request, self._engine.info.eos_token_ids[0]
        stop_ids = {end, *request.sampling.stop_token_ids}
        banned = frozenset(word[0] for word in request.sampling.bad_words if len(word) == 1)
        left = [*self._scripted_tokens(index), end]
        num_tokens = num_free = 0
        while True:
            left = [token_id for token_id in left if token_id not in banned]
            taken = left[:1]
            if not num_free:
                shown = self._shown(left, stop_ids, request.sampling.max_tokens - num_tokens)
                self._show(index, shown)
                answer = await self._told.get()
                assert answer.num_taken < len(shown)
                banned, num_free = banned | answer.banned, answer.num_steps
                taken = shown[: answer.num_taken]
                if answer.token_id is not None:
                    taken.append(answer.token_id)
                elif shown[answer.num_taken] not in banned:
                    taken.append(shown[answer.num_taken])
                else:
                    num_free -= 1
                num_free += answer.num_taken
            for token_id in taken:
                left.pop(0)
                num_free -= 1
                num_tokens += 1
                is_stop = token_id in stop_ids
                is_over = is_stop or num_tokens >= request.sampling.max_tokens
                reason = (FinishReason.STOP if is_stop else FinishReason.LENGTH) if is_over else None
                self._emit(index, [token_id], num_tokens == 1, reason, token_id if is_stop else None)
                if is_over:
                    return

    def _shown(self, left: Sequence[int], stop_ids: set[int], num_left: int) -> list[int]:
        """The next tokens up to one that ends the sequence."""
        shown = list(left[: min(self._num_told, num_left)])
        ends = [at for at, token_id in enumerate(shown) if token_id in stop_ids]
        return shown[: ends[0] + 1] if ends else shown

    def _show(self, index: int, shown: Sequence[int]) -> None:
        self._last_shown = shown
        first, *further = [(token_id, self._distribution_of(token_id)) for token_id in shown]
        event = TokenEvent(request_id=self._request.request_id, index=index, token_ids=[], proposal=first[0])
        event.distribution, event.further = first[1], further
        self._put(event)

    def _distribution_of(self, token_id: int) -> Distribution | None:
        readout = self._request.readout
        return None if readout is None else distribution_of(token_id, readout, self._engine.info.vocab_size)


class TellingEngine(ScriptedEngine):
    """Implements `engine.client.EngineClient`.

    Attributes:
        num_told: Steps that it tells of together.
    """

    stream_type = TellingStream
    num_told = 1
