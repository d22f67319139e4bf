"""The table of cases."""

from __future__ import annotations

from tests.conformance.cases import CASES


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40
    assert len({repr(case) for case in CASES.values()}) == len(CASES)
