"""What happens while an answer is made whose tools this server runs, in the order in which clients are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extensions.output import TokenText
from extensions.parsing.parts import Part
from gateway.tools.calls import ServerCall


@dataclass(frozen=True, slots=True)
class Said:
    """The model wrote text, thought, or a call of a function of the client.

    Attributes:
        part: What.
        tokens: Of it, with log-probabilities if asked for.
        round: How many times the model had been asked before.
    """

    part: Part
    tokens: Sequence[TokenText]
    round: int


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model has begun to write a call of a tool that this server runs."""

    call: ServerCall


@dataclass(frozen=True, slots=True)
class CallWritten:
    """More of its arguments.

    Attributes:
        call: Which.
        text: The next piece.
    """

    call: ServerCall
    text: str


@dataclass(frozen=True, slots=True)
class CallRunning:
    """The call is whole, and is being made."""

    call: ServerCall


@dataclass(frozen=True, slots=True)
class CallEnded:
    """It has its outcome, or is not made at all."""

    call: ServerCall


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """The call waits for a person's yes; the answer ends."""

    call: ServerCall


News = Said | CallBegun | CallWritten | CallRunning | CallEnded | ApprovalAsked
