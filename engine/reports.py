"""Engine errors as plain fields, and back."""

from __future__ import annotations

import inspect

from engine import errors
from engine.errors import EngineError
from engine.request import ErrorReport

_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, EngineError)}


def report(error: EngineError) -> ErrorReport:
    """Describes an error so that `rebuild` can make an equal one."""
    parameters = list(inspect.signature(type(error).__init__).parameters)[1:]
    fields = {name: getattr(error, name) for name in parameters if name != "message"}
    return ErrorReport(type(error).__name__, error.message, fields)


def rebuild(reported: ErrorReport) -> EngineError:
    """The error that was described; an `EngineError` with its message if its kind is unknown here."""
    kind = _KINDS.get(reported.kind, EngineError)
    parameters = list(inspect.signature(kind.__init__).parameters)[1:]
    values = {"message": reported.message, **reported.fields}
    return kind(**{name: values[name] for name in parameters})  # type: ignore[arg-type]  # checked by the round-trip test
