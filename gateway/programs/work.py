"""A running program, read like a generation: by everything that streams or collects text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from extensions.output import GenerationStep, Usage
from extensions.programs.program import Program
from extensions.programs.request import (
    EventEmitted,
    LogWritten,
    ProgramOutcome,
    ProgramRequest,
    ProgramUsage,
    RunEvent,
    TextEmitted,
    TraceNoted,
)
from gateway.generations import Choice
from gateway.tenancy.payer import Payer


class ReadableRun(Protocol):
    """A program's run as its reader needs it: `ProgramRun`, or one that somebody else reads too."""

    @property
    def program(self) -> Program:
        """What runs."""
        ...

    @property
    def request(self) -> ProgramRequest:
        """What it answers."""
        ...

    @property
    def usage(self) -> ProgramUsage:
        """What it used up to now."""
        ...

    @property
    def logs(self) -> str:
        """What it printed up to now."""
        ...

    @property
    def outcome(self) -> ProgramOutcome:
        """What came of it, once the iteration has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[RunEvent]: ...

    async def aclose(self) -> None:
        """Reads no more. Idempotent."""
        ...


class ProgramWork:
    """The work of a request that a program answers. Iterate once; close it however that ends.

    Args:
        run: The program.
        payer: Told at the end what was used.
        model: The model's name, for whoever pays.

    Attributes:
        run: The program.
        outcome: What it came to; None before its end.
    """

    def __init__(self, run: ReadableRun, payer: Payer | None = None, model: str = "") -> None:
        self.run = run
        self._payer = payer or Payer()
        self._payer.begin(model, run.program.name or "inline")
        self.outcome: ProgramOutcome | None = None
        self._news: list[dict[str, Any]] = []
        self._notes: list[dict[str, Any]] = []
        self._steps = self._read()

    @property
    def payer(self) -> Payer:
        """Who pays."""
        return self._payer

    @property
    def usage(self) -> Usage:
        """Tokens so far, of all that the program generated."""
        used = self.run.usage
        return Usage(
            num_prompt_tokens=used.num_prompt_tokens,
            num_completion_tokens=used.num_completion_tokens,
            num_cached_tokens=used.num_cached_tokens,
            per_choice={0: used.num_completion_tokens},
            kv_kib_ms=used.kv_kib_ms,
        )

    def take_news(self) -> list[dict[str, Any]]:
        """What the program told besides text since the last call: `extension` objects of the wire."""
        news, self._news = self._news, []
        return news

    def __aiter__(self) -> AsyncIterator[GenerationStep]:
        return self

    async def __anext__(self) -> GenerationStep:
        """Waits for text or news; the last step brings the finish reason.

        Raises:
            ProgramError: The program failed.
            EngineError: The engine did.
        """
        return await self._steps.__anext__()

    async def collect(self) -> list[Choice]:
        """Waits for the end and returns the one choice. Closes itself.

        Raises:
            ProgramError: The program failed.
            EngineError: The engine did.
        """
        choice = Choice(0)
        try:
            async for step in self:
                choice.texts.append(step.text)
                choice.finish_reason = step.finish_reason or choice.finish_reason
        finally:
            await self.aclose()
        return [choice]

    async def aclose(self) -> None:
        """Ends the program if it still runs; all it holds is free within one step. Idempotent."""
        await self.run.aclose()
        self._payer.end(self.usage)

    def body(self) -> dict[str, Any]:
        """The `extension` of the answer; once the program has ended."""
        outcome = self.outcome
        assert outcome is not None
        request = self.run.request
        # Whoever reads a stream has been told as it happened.
        told = {"trace": self._notes} if request.trace and not request.stream else {}
        return {
            "run_id": request.id,
            "result": outcome.result,
            "exec_path": outcome.exec_path,
            "exec_reason": outcome.exec_reason or None,
            "usage": usage_body(outcome.usage),
            "logs": outcome.logs,
            **told,
        }

    async def _read(self) -> AsyncIterator[GenerationStep]:
        async for event in self.run:
            match event:
                case TextEmitted(text):
                    yield GenerationStep(index=0, text=text)
                case EventEmitted(kind, data):
                    self._news.append({"event": {"type": kind, "data": data}})
                    yield GenerationStep(index=0)
                case LogWritten(text):
                    self._news.append({"log": text})
                    yield GenerationStep(index=0)
                case TraceNoted(at_ms, kind, data):
                    note = {"at_ms": at_ms, "type": kind, **data}
                    self._notes.append(note)
                    self._news.append({"trace": note})
                    yield GenerationStep(index=0)
        outcome = self.outcome = self.run.outcome
        yield GenerationStep(index=0, finish_reason="length" if outcome.finish_reason == "length" else "stop")


def usage_body(used: ProgramUsage) -> dict[str, Any]:
    """What a program used, on the wire."""
    return {
        "prompt_tokens": used.num_prompt_tokens,
        "cached_tokens": used.num_cached_tokens,
        "completion_tokens": used.num_completion_tokens,
        "host_calls": used.num_host_calls,
        "generations": used.num_generations,
        "contexts": used.num_contexts,
        "max_contexts": used.max_contexts,
        "children": used.num_children,
        "tool_calls": used.num_tool_calls,
        "http_calls": used.num_http_calls,
        "output_bytes": used.output_bytes,
        "log_bytes": used.log_bytes,
        "wall_s": round(used.wall_s, 6),
        "first_call_s": None if used.first_call_s is None else round(used.first_call_s, 6),
        "kv_byte_seconds": round(used.kv_kib_ms * 1.024),
    }
