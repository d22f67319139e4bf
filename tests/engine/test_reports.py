"""Engine errors survive the way through a process boundary."""

from __future__ import annotations

import pytest

from engine import errors
from engine.errors import ContextTooLong, EngineError, EngineStopped, InvalidRequest, OutOfPages, QueueFull
from engine.reports import rebuild, report
from engine.request import ErrorReport

EXAMPLES = [
    EngineError("broken"),
    InvalidRequest("top_p must be between 0 and 1", "top_p"),
    ContextTooLong(100, 90, 20),
    errors.UnknownAdapter("no adapter 'x'", "adapter"),
    errors.UnsupportedReadout("no hidden states"),
    errors.ConstraintBroken("nothing can follow", "guided_regex"),
    errors.ProgramFailed(),
    errors.ResourceExhausted("no room"),
    OutOfPages(3, 1),
    QueueFull(12),
    errors.QuotaExceeded("tenant"),
    errors.LeaseLost("pressure"),
    errors.SequenceNotFound("gone"),
    errors.ModelLoadError("model.safetensors: truncated"),
    EngineStopped("stopping"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_rebuilt_with_its_kind_message_and_fields(error: EngineError) -> None:
    rebuilt = rebuild(report(error))
    assert type(rebuilt) is type(error)
    assert rebuilt.message == error.message
    assert vars(rebuilt) == vars(error)


def test_every_error_of_the_tree_has_an_example() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EngineError)}
    assert kinds == {type(error) for error in EXAMPLES}


def test_an_unknown_kind_becomes_a_plain_engine_error() -> None:
    rebuilt = rebuild(ErrorReport("FromTheFuture", "something else", {"field": 1}))
    assert type(rebuilt) is EngineError
    assert rebuilt.message == "something else"
