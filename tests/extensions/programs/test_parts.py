"""Limits, lanes and errors by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ContextTooLong, EngineError, EngineStopped, InvalidRequest, SequenceNotFound
from engine.text.errors import TemplateError
from extensions.errors import ArgumentsInvalid, Diagnostic, ProgramError, ProgramInvalid
from extensions.programs.faults import CODES, code_of, fault, to_fault
from extensions.programs.limits import ProgramLimits
from extensions.programs.planner import FUSED, Feature, PathRecord, is_slower, plan
from tests.extensions.programs.stage import Stage, main_of


def test_limits_become_smaller_only() -> None:
    limits = ProgramLimits(wall_s=10.0, host_calls=50)
    narrowed = limits.narrowed({"wall_s": 2, "host_calls": 7.0})
    assert (narrowed.wall_s, narrowed.host_calls) == (2.0, 7)
    assert isinstance(narrowed.wall_s, float)
    assert isinstance(narrowed.host_calls, int)
    assert narrowed.exec_s == limits.exec_s


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        ({"speed": 1}, "limits.speed", "there is no limit 'speed'"),
        ({"source_bytes": 1}, "limits.source_bytes", "there is no limit"),
        ({"wall_s": 0}, "limits.wall_s", "must be a positive number"),
        ({"wall_s": "1"}, "limits.wall_s", "must be a positive number"),
        ({"wall_s": float("nan")}, "limits.wall_s", "must be a positive number"),
        ({"wall_s": True}, "limits.wall_s", "must be a positive number"),
        ({"contexts": 1.5}, "limits.contexts", "must be a whole number"),
        ({"wall_s": 1e9}, "limits.wall_s", "must be at most 300"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_by_name(asked: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ArgumentsInvalid, match=message) as caught:
        ProgramLimits().narrowed(asked)
    assert caught.value.param == param


def test_a_plan_is_the_fastest_lane_that_honours_every_feature() -> None:
    assert plan([]) == FUSED
    lanes = {feature: plan([feature]).lane for feature in Feature}
    slow = (Feature.STEPS, Feature.DISTRIBUTION, Feature.GUESSES)
    quick = (Feature.PROGRAM, Feature.FORWARD, Feature.GUESSING_PROGRAM)
    assert lanes == {**dict.fromkeys(slow, "host"), **dict.fromkeys(quick, "device")}
    assert plan([Feature.PROGRAM, Feature.STEPS]).lane == "host"
    assert all(plan([feature]).reason for feature in Feature)
    assert is_slower("host", "device")
    assert not is_slower("fused", "fused")


def test_the_path_of_a_run_names_its_lanes() -> None:
    assert PathRecord().path == "fused"
    record = PathRecord()
    record.note(plan([Feature.STEPS]))
    steps = (record.path, record.reason)
    record.note(FUSED)
    assert steps == ("host", plan([Feature.STEPS]).reason)
    assert (record.path, record.reason) == ("mixed", plan([Feature.STEPS]).reason)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (InvalidRequest("no", "temperature"), ValueError, "invalid_argument"),
        (InvalidRequest("no", "constrain"), ValueError, "constraint_invalid"),
        (ContextTooLong(10, 8, 5), ValueError, "invalid_argument"),
        (SequenceNotFound("gone"), RuntimeError, "context_lost"),
        (TemplateError("roles"), ValueError, "invalid_argument"),
        (ValueError("busy"), ValueError, "invalid_argument"),
        (fault("kv_exhausted", "5 needed"), MemoryError, "kv_exhausted"),
    ],
)
def test_an_error_of_the_server_is_a_builtin_with_a_code(error: Exception, kind: type, code: str) -> None:
    seen = to_fault(error)
    assert seen is not None
    assert (type(seen), code_of(seen)) == (kind, code)


@pytest.mark.parametrize("error", [EngineStopped("gone"), EngineError("bug"), ZeroDivisionError("bug")])
def test_what_is_not_the_scripts_to_handle_is_no_fault(error: Exception) -> None:
    assert to_fault(error) is None


def test_only_known_codes_are_codes() -> None:
    assert code_of(ValueError("something: else")) is None
    assert code_of(ValueError("kv_exhausted: of the wrong kind")) is None
    assert all(code_of(fault(code, "x")) == code for code in CODES)


def test_an_invalid_program_tells_its_first_problems() -> None:
    error = ProgramInvalid([Diagnostic(line=at, column=2, message="bad") for at in range(1, 6)])
    assert str(error) == (
        "The program is not valid: line 1, column 2: bad; line 2, column 2: bad; line 3, column 2: bad (and 2 more)"
    )
    assert isinstance(error, ProgramError)
    assert (error.code, error.can_retry) == ("program_invalid", False)


async def test_work_on_a_lane_that_is_allowed_runs(stage: Stage) -> None:
    outcome = await stage.run(main_of("await (await lm.context('x')).generate()"), strict_path="fused")
    assert outcome.exec_path == "fused"
