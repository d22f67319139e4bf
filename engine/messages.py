"""What crosses between an engine process and the gateways connected to it: msgpack, one frame a step and gateway."""

from __future__ import annotations

import msgspec

from engine.contexts.commands import (
    AppendTokens,
    ContextInfo,
    EndLease,
    ExportContext,
    ForkContext,
    ImportContext,
    KeepContext,
    KeepExport,
    OpenContext,
    ReleaseContexts,
    ReleaseExport,
    RetainContext,
    TruncateContext,
)
from engine.kv.commands import SetCeilings, SetShares
from engine.kv.overview import KVMap
from engine.leases.lease import LeaseRevoked
from engine.request import ConstraintSpec, EngineInfo, ErrorReport, GenerateRequest, Proposal, TokenEvent
from engine.stats import AccountCharge, EngineStats


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A gateway is there and wants to know whom it talks to."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Run this. Answered by `Frame.accepted` or `Frame.refused`."""

    request: GenerateRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Nobody wants this request any more. Not answered."""

    request_id: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """One sequence's text has come to its end (a stop string). Not answered."""

    request_id: str
    index: int


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """Go on with a stepped request that is paused. Answered by its events.

    Attributes:
        request_id: Which.
        token_id: The token to take; None takes the one proposed, or draws again if that is banned now.
        num_steps: Draws until it pauses again, at least 1; all but the last are taken as they come.
        banned: Tokens that may not be drawn from now on.
        num_taken: Proposals that are taken before that, of those that were told of together (`TokenEvent.further`).
    """

    request_id: str
    token_id: int | None = None
    num_steps: int = 1
    banned: list[int] = []
    num_taken: int = 0


class Guess(msgspec.Struct, frozen=True, tag="guess"):
    """What the caller expects of a request that waits for its guess. Answered by its events.

    Attributes:
        request_id: Which.
        token_ids: The tokens expected next, in order; none if it expects nothing in particular.
        proposals: What each of them was drawn from; none if they were not drawn.
    """

    request_id: str
    token_ids: list[int] = []
    proposals: list[Proposal] = []


class Compile(msgspec.Struct, frozen=True, tag="compile"):
    """Have a constraint ready for requests. Answered in `Frame.accepted` or `Frame.refused`, once it is or cannot be.

    Attributes:
        request_id: Unique as that of a request.
        constraint: Which.
    """

    request_id: str
    constraint: ConstraintSpec


class DescribeContext(msgspec.Struct, frozen=True, tag="describe"):
    """What does a held context, or an export, hold now? Answered in `Frame.contexts`.

    Attributes:
        op_id: Unique among questions of one gateway that wait for an answer.
        context_id: Which.
    """

    op_id: int
    context_id: str


class DescribeKV(msgspec.Struct, frozen=True, tag="describe_kv"):
    """Who holds the KV pool now? Answered in `Frame.kv_maps`.

    Attributes:
        op_id: Unique among questions of one gateway that wait for an answer.
    """

    op_id: int


Command = (
    Hello
    | Submit
    | Abort
    | Stop
    | Advance
    | Guess
    | Compile
    | DescribeContext
    | DescribeKV
    | OpenContext
    | AppendTokens
    | ForkContext
    | TruncateContext
    | ReleaseContexts
    | RetainContext
    | EndLease
    | KeepContext
    | ExportContext
    | ImportContext
    | KeepExport
    | ReleaseExport
    | SetCeilings
    | SetShares
)


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A request that was not accepted, and why."""

    request_id: str
    error: ErrorReport


class ContextDescribed(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `DescribeContext`."""

    op_id: int
    info: ContextInfo


class KVDescribed(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `DescribeKV`."""

    op_id: int
    drawn: KVMap


class Frame(msgspec.Struct, omit_defaults=True):
    """All that one step of the engine has for one gateway.

    Attributes:
        events: Of this gateway's requests.
        accepted: Request ids.
        refused: Requests that were not.
        stats: About once a second.
        info: In answer to `Hello`.
        contexts: In answer to `DescribeContext`.
        kv_maps: In answer to `DescribeKV`.
        revoked: Leases of this gateway's contexts that ended before their holders ended them.
        charges: About once a second: the accounts whose KV cost something since then; all of them after `Hello`.
    """

    events: list[TokenEvent] = []
    accepted: list[str] = []
    refused: list[Refusal] = []
    stats: EngineStats | None = None
    info: EngineInfo | None = None
    contexts: list[ContextDescribed] = []
    kv_maps: list[KVDescribed] = []
    charges: list[AccountCharge] = []
    revoked: list[LeaseRevoked] = []

    @property
    def is_empty(self) -> bool:
        """True if it is not worth sending."""
        return not (
            self.events
            or self.accepted
            or self.refused
            or self.stats
            or self.info
            or self.contexts
            or self.kv_maps
            or self.charges
            or self.revoked
        )


encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_frame = msgspec.msgpack.Decoder(Frame).decode
