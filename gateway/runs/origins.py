"""What a run was begun with: all that another worker needs to begin it again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from extensions.programs.limits import ProgramLimits
from extensions.programs.request import ProgramRequest
from extensions.programs.run import ProgramRun
from gateway.prefixes.asking import key_id_of
from gateway.tenancy.payer import Payer


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """See above.

    Attributes:
        source: The script.
        request: What it answers.
        limits: What it may use.
        fingerprint: Of the model.
        salt: Of its pages.
        scopes: What the key may do that pays.
        key_id: Of that key; empty if it has none.
    """

    source: str
    request: dict[str, Any]
    limits: dict[str, Any]
    fingerprint: str
    salt: str
    scopes: str
    key_id: str

    @property
    def program_request(self) -> ProgramRequest:
        """What the script answers."""
        return ProgramRequest(**self.request)

    @property
    def program_limits(self) -> ProgramLimits:
        """What it may use."""
        return ProgramLimits(**self.limits)


def origin_of(run: ProgramRun, payer: Payer, fingerprint: str) -> bytes:
    """The origin of a run that has just begun.

    Args:
        run: The run.
        payer: Who pays.
        fingerprint: Of the model.
    """
    origin = Origin(
        source=run.program.source,
        request=asdict(run.request),
        limits=asdict(run.limits),
        fingerprint=fingerprint,
        salt=payer.salt,
        scopes=payer.scopes,
        key_id=key_id_of(payer),
    )
    return msgspec.msgpack.encode(origin)


def read_origin(data: bytes) -> Origin:
    """An origin that was kept.

    Raises:
        msgspec.MsgspecError: It is none.
    """
    return msgspec.msgpack.decode(data, type=Origin)
