"""Where the types of programs lie, for checkers and editors."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def stubs_path() -> Path:
    """The file of types that every script is checked against."""
    return Path(__file__).with_name("stubs.pyi")


@cache
def stubs_text() -> str:
    """Its text."""
    return stubs_path().read_text(encoding="utf-8")
