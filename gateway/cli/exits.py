"""Exit codes of `wye`, and which error ends with which."""

from __future__ import annotations

import enum

from engine.errors import EngineError, ModelLoadError
from engine.sources.errors import (
    AccessDenied,
    BadReference,
    DamagedModel,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
    StoreBusy,
    UnsupportedModel,
)
from gateway.failures import EXIT_BAD_MODEL, AddressUnavailable, GaveUp, ServeError


class Exit(enum.IntEnum):
    """How a command ended."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    ACCESS_DENIED = 4
    UNAVAILABLE = 5
    BAD_MODEL = EXIT_BAD_MODEL
    ADDRESS = 7
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "success",
    Exit.FAILURE: "failure",
    Exit.USAGE: "wrong usage: an option, a setting or a model reference is not valid",
    Exit.NOT_FOUND: "the model, file, repository, revision or package is not there, or a server has no such thing",
    Exit.ACCESS_DENIED: "the model is gated or private and the token does not open it, or a server refuses the key",
    Exit.UNAVAILABLE: "hub, index or server do not answer, offline mode forbids it, or another process holds the model",
    Exit.BAD_MODEL: "the model is damaged or unsupported, or cannot run with these settings on this machine",
    Exit.ADDRESS: "host and port cannot be listened on",
    Exit.INTERRUPTED: "interrupted, or stopped by a second signal",
}

_BY_ERROR: tuple[tuple[type[Exception], Exit], ...] = (
    (BadReference, Exit.USAGE),
    (SourceNotFound, Exit.NOT_FOUND),
    (AccessDenied, Exit.ACCESS_DENIED),
    (SourceUnavailable, Exit.UNAVAILABLE),
    (StoreBusy, Exit.UNAVAILABLE),
    (UnsupportedModel, Exit.BAD_MODEL),
    (DamagedModel, Exit.BAD_MODEL),
    (ModelLoadError, Exit.BAD_MODEL),
    (SourceError, Exit.FAILURE),
    (AddressUnavailable, Exit.ADDRESS),
    (EngineError, Exit.FAILURE),
    (GaveUp, Exit.FAILURE),
    (ServeError, Exit.USAGE),
)


def exit_code(error: BaseException) -> Exit | None:
    """The code for an error whose message is meant for people; None for any other."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), None)


def help_text() -> str:
    """The table for `--help`."""
    return "Exit codes: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in MEANINGS.items()) + "."
