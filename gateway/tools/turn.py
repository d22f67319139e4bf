"""An answer whose tools this server runs: the model asks, the tools answer, until it asks no more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

from extensions.output import GenerationStep, Usage
from gateway.errors import REPEATS_HARM
from gateway.generations import Choice, Generations
from gateway.schemas.chat import ChatRequest
from gateway.tools.calls import CUT, LATE, NOT_RUN, ServerCall
from gateway.tools.making import TurnTools
from gateway.tools.news import ApprovalAsked, CallEnded, CallRunning, News
from gateway.tools.rounds import Round, next_request, turn_messages
from gateway.tools.runner import CallRunner
from gateway.translate.chat import ChatForm
from gateway.translate.usage import total_usage

Finish = Literal["stop", "length", "tool_calls", "max_tool_calls"]

Begin = Callable[[ChatRequest], Awaitable[tuple[Generations, ChatForm]]]
"""Hands a round's request to the engine."""

_NEWS = GenerationStep(index=0)


class ToolTurn:
    """The work of one answer. Iterate once; close it however that ends.

    Attributes:
        tools: What it runs.
        calls: Those of this server so far, in order.
        finish: Why it ended.
        stop_reason: The stop string or token that ended it, or `max_tool_calls`, or `max_tool_time`.
        form: How the model's text is read; None before the first round.
    """

    def __init__(self, begin: Begin, chat: ChatRequest, tools: TurnTools) -> None:
        self.tools = tools
        self.calls: list[ServerCall] = list(tools.approved)
        self.finish: Finish = "stop"
        self.stop_reason: str | int | None = None
        self.form: ChatForm | None = None
        self._begin = begin
        self._chat = chat
        self._round: Round | None = None
        self._num_rounds = 0
        self._num_made = 0
        self._num_client_calls = 0
        self._used: list[Usage] = []
        self._num_thought_tokens = 0
        self._news: list[News] = []
        self._runner = CallRunner(tools)
        self._ends_s = time.monotonic() + tools.max_s
        self._let_go: Callable[[], None] = _nothing
        self._steps = self._play()

    @classmethod
    async def start(cls, begin: Begin, chat: ChatRequest, tools: TurnTools) -> ToolTurn:
        """Begins the first round, unless approved calls come before it.

        Raises:
            GatewayError: The request cannot be served as it stands.
            EngineError: The engine does not take it.
        """
        turn = cls(begin, chat, tools)
        if not tools.approved:
            await turn._begin_round()
        turn._hold()
        return turn

    @property
    def usage(self) -> Usage:
        """Tokens so far, all rounds together."""
        current = [] if self._round is None else [self._round.work.usage]
        usage = total_usage([*self._used, *current])
        usage.num_reasoning_tokens = self._num_thought_tokens
        if self._round is not None:
            usage.num_reasoning_tokens += self._round.reading.thought.count
        usage.per_choice = {0: usage.num_completion_tokens}
        return usage

    @property
    def current_calls(self) -> list[ServerCall]:
        """Those of the round that has not ended."""
        return [] if self._round is None else self._round.calls

    def take_news(self) -> list[News]:
        """What has happened since the last call."""
        news, self._news = self._news, []
        return news

    def __aiter__(self) -> AsyncIterator[GenerationStep]:
        return self

    async def __anext__(self) -> GenerationStep:
        """Waits for news; the last step brings the finish reason.

        Raises:
            GatewayError: The conversation has become one that cannot be continued, such as too long a one.
            EngineError: The engine failed.
        """
        return await self._steps.__anext__()

    async def collect(self) -> list[Choice]:
        """Waits for the end, and closes itself; the news stay to be taken.

        Raises:
            GatewayError: See `__anext__`.
            EngineError: The engine failed.
        """
        choice = Choice(0)
        try:
            async for step in self:
                choice.finish_reason, choice.stop_reason = step.finish_reason, step.stop_reason
        except Exception as error:
            # Official clients repeat a request that failed on the server's side, and all its calls with it.
            if any(call.is_done_for_good for call in [*self.calls, *self.current_calls]):
                setattr(error, REPEATS_HARM, True)
            raise
        finally:
            await self.aclose()
        return [choice]

    def _hold(self) -> None:
        """Keeps the request from being settled between two rounds."""
        if self.tools.payer is not None and (ticket := self.tools.payer.ticket) is not None:
            ticket.enter()
            self._let_go = ticket.leave

    async def aclose(self) -> None:
        """Ends calls and generations that still run. Idempotent."""
        let_go, self._let_go = self._let_go, _nothing
        await self._runner.aclose()
        if self._round is not None:
            await self._round.work.aclose()
        # Its reader may be in it still, about to be cancelled: then it ends by itself.
        with contextlib.suppress(RuntimeError):
            await self._steps.aclose()
        let_go()

    async def _play(self) -> AsyncGenerator[GenerationStep, None]:
        if self.tools.approved:
            async for step in self._make(self.tools.approved):
                yield step
            self._extend_by_approved()
            await self._begin_round()
        while (current := self._round) is not None:
            async for step in current.work:
                if news := current.read(step):
                    self._news += news
                    # A call that is not forced is whole as soon as it is told.
                    if not current.form.plan.is_forced and not self._is_late:
                        self._runner.start_early(current.calls, self.tools.max_calls - self._num_made)
                    yield _NEWS
            await self._close_round(current)
            async for step in self._make(self._due(current)):
                yield step
            if self._is_over(current):
                break
            more = current.messages()
            self._chat = next_request(self._chat, more, num_tokens=self._used[-1].num_completion_tokens)
            await self._begin_round()
        reason: Literal["stop", "length"] = "stop" if self.finish in ("stop", "tool_calls") else "length"
        yield GenerationStep(index=0, finish_reason=reason, stop_reason=self.stop_reason)

    def _extend_by_approved(self) -> None:
        more = turn_messages("", "", self.tools.approved)
        self._chat = self._chat.model_copy(update={"messages": [*self._chat.messages, *more]})

    async def _begin_round(self) -> None:
        work, form = await self._begin(self._chat)
        self.form = self.form or form
        self._round = Round(
            work=work,
            form=form,
            offers=self.tools.offers,
            number=self._num_rounds,
            first_call=len(self.calls),
            first_client_call=self._num_client_calls,
            reading=form.reading(),
        )
        self._num_rounds += 1

    async def _close_round(self, current: Round) -> None:
        self._round = None
        await current.work.aclose()
        self._used.append(current.work.usage)
        self._num_thought_tokens += current.reading.thought.count
        self._num_client_calls += current.num_client_calls
        self.calls += current.calls
        self.stop_reason = current.stop_reason
        if current.finish_reason == "length":
            await self._runner.drop(current.calls)

    def _due(self, current: Round) -> list[ServerCall]:
        """The calls of a round that are made now; the others are told to be left, or to wait for a person."""
        due: list[ServerCall] = []
        for call in current.calls:
            if current.finish_reason == "length":
                call.leave(CUT, "The answer was cut; the call was not made.")
            elif call.offer.needs_approval:
                self._news.append(ApprovalAsked(call))
                continue
            elif self._is_late and not self._runner.has_begun(call):
                call.leave(LATE, f"The answer's {self.tools.max_s:g} s for tools are over; the call was not made.")
            elif self._num_made + len(due) >= self.tools.max_calls:
                call.leave(NOT_RUN, f"The answer has made {self.tools.max_calls} calls; this one was not made.")
            else:
                due.append(call)
                continue
            self._news.append(CallEnded(call))
        self._num_made += len(due)
        return due

    @property
    def _is_late(self) -> bool:
        """The time in which calls are begun is over."""
        return time.monotonic() >= self._ends_s

    def _is_over(self, current: Round) -> bool:
        """Decides whether the model is asked once more, and why not."""
        codes = {call.error.code for call in current.calls if call.error is not None}
        if current.finish_reason == "length":
            self.finish = "length"
        elif NOT_RUN in codes or LATE in codes:
            self.finish, self.stop_reason = "max_tool_calls", LATE if LATE in codes else NOT_RUN
        elif current.num_client_calls:
            self.finish = "tool_calls"
        elif current.calls and not any(call.offer.needs_approval for call in current.calls):
            left = self._chat.asked_tokens
            if left is None or left > self._used[-1].num_completion_tokens:
                return False
            self.finish = "length"
        return True

    async def _make(self, calls: Sequence[ServerCall]) -> AsyncIterator[GenerationStep]:
        """Makes calls, all at once; steps tell that there is news."""
        if self._news:
            yield _NEWS
        if not calls:
            return
        self._news += [CallRunning(call) for call in calls]
        yield _NEWS
        async for ended in self._runner.ended(calls):
            self._news += [CallEnded(call) for call in ended]
            yield _NEWS


def _nothing() -> None:
    return
