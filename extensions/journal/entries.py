"""What a journal is made of, in the order in which it happened, and its form as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from engine.request import TokenEvent


class Called(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """The script called the server.

    Attributes:
        prefix: Of the program; empty for that of the run, else of a child.
        kind: Class and method.
        digest: Of the arguments.
    """

    prefix: str
    kind: str
    digest: str


class Settled(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The script was given the answer to a call that it did not wait for at once.

    Attributes:
        prefix: See `Called`.
        index: Which of the program's calls.
    """

    prefix: str
    index: int


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """Something begins that cannot simply be begun again.

    Attributes:
        key: Names it within the run.
        digest: Of what is asked.
        seed: Of the random numbers of a generation.
    """

    key: str
    digest: str
    seed: int | None = None


class Undone(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """What was begun has not taken place: it may be begun again.

    Attributes:
        key: See `Begun`.
    """

    key: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """What came of something.

    Attributes:
        key: See `Begun`.
        digest: Of what was asked.
        value: Plain data.
        error: Code and message of what a script is told instead; empty where there is a value.
    """

    key: str
    digest: str
    value: Any = None
    error: tuple[str, ...] = ()


class Streamed(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """News of the engine.

    Attributes:
        key: See `Begun`.
        event: The news.
    """

    key: str
    event: TokenEvent


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """Nobody read on.

    Attributes:
        key: See `Begun`.
    """

    key: str


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The journal goes no further, though the run does.

    Attributes:
        reason: Why, for people.
    """

    reason: str


Entry = Called | Settled | Begun | Undone | Done | Streamed | Closed | Ended

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode
_LENGTH_BYTES = 4


def packed(entry: Entry) -> bytes:
    """An entry as bytes; those of several can be joined."""
    data = _encode(entry)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def unpacked(parts: Iterable[bytes]) -> Iterator[Entry]:
    """The entries in some joined ones.

    Raises:
        ValueError: These are none.
    """
    for data in parts:
        at = 0
        while at < len(data):
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(data[at:start], "big")
            yield _decode(data[start:at])
