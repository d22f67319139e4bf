"""Errors of finding, fetching and keeping models.

    SourceError
    ├── BadReference        the text names no kind of source we know, or is unsafe; trying again cannot help
    ├── SourceNotFound      nothing is there: no such stored name, file, repository, revision or package
    ├── AccessDenied        the other side wants a token, or this one may not read the model
    ├── UnsupportedModel    the files are there and whole, but not of a kind this engine reads
    ├── DamagedModel        a file is truncated, missing or not what its checksum says; a new pull can help
    ├── StoreBusy           another process works on the same stored model; waiting helps
    └── SourceUnavailable   network, hub or index do not answer, or we are told to stay offline; a later try can help

Whatever is raised, the store is as before: a model is listed only after all its files have been checked.
"""

from __future__ import annotations


class SourceError(Exception):
    """Root of everything `engine.sources` raises; the message says what is wrong and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadReference(SourceError):
    """The reference has no form we know, or names something unsafe."""


class SourceNotFound(SourceError):
    """Nothing is there under this reference."""


class AccessDenied(SourceError):
    """The model is gated or private, and the token (or its absence) does not open it."""


class UnsupportedModel(SourceError):
    """The files are of a kind this engine does not read."""


class DamagedModel(SourceError):
    """A file is truncated, missing, or differs from its checksum."""


class StoreBusy(SourceError):
    """Another process holds the lock of this stored model."""


class SourceUnavailable(SourceError):
    """The other side cannot be reached, or we are offline by order."""
