"""Every case of the log has a test that is named after it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = re.compile(r"def test_\w+|\"[^\"\n]*\bG-\d\d")
NUMBER = re.compile(r"(?:_g_|G-)(\d\d)")
LATER = {66, 67}
"""Of what is not served yet: adapters, programs."""


def test_every_case_is_named_by_a_test() -> None:
    found = {
        int(number)
        for path in TESTS.rglob("*.py")
        if path != Path(__file__)
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
        for number in NUMBER.findall(name)
    }
    assert set(range(1, 87)) - found <= LATER
