"""How detached runs end, as it is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from extensions.programs.request import ProgramOutcome
from gateway.programs.work import ReadableRun, usage_body
from gateway.state.run_store import Status

NO_JOURNAL = "it keeps no journal"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        status: In a word.
        answer: What it came to.
        error: Why it failed; None if it did not.
    """

    status: Status
    answer: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None


def completed(outcome: ProgramOutcome) -> Ending:
    """It came to its end."""
    answer = {
        "content": outcome.content,
        "message": None if outcome.message is None else dict(outcome.message),
        "result": outcome.result,
        "finish_reason": outcome.finish_reason,
        "exec_path": outcome.exec_path,
        "exec_reason": outcome.exec_reason or None,
        "usage": usage_body(outcome.usage),
        "logs": outcome.logs,
    }
    return Ending(status="completed", answer=answer)


def stopped(run: ReadableRun, error: dict[str, Any] | None) -> Ending:
    """It was ended early: by an error, or by its owner if there is none."""
    answer = {"usage": usage_body(run.usage), "logs": run.logs}
    return Ending(status="cancelled" if error is None else "failed", answer=answer, error=error)


def interrupted(reason: str) -> dict[str, Any]:
    """Error of a run whose worker is gone.

    Args:
        reason: Why nobody can go on with it; empty if that is not known.
    """
    message = "The server process that ran the program ended before it was done."
    if reason:
        message += f" No other can go on with it: {reason}."
    return {"message": message, "type": "server_error", "param": None, "code": "run_interrupted"}
