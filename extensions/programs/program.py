"""A program: a script that was checked, and what its header says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extensions.programs.capabilities import Need

EXT_API = 1
"""Version of what a program sees. A program that runs today runs on every later server that speaks 1."""


def digest_of(source: str) -> str:
    """Identity of a script: `sha256:` and the hex digest of its text."""
    return "sha256:" + hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A script that may run.

    Attributes:
        source: Its text, exactly as sent.
        digest: Of the text.
        name: From the header; empty for a script without one.
        version: From the header, a semantic version; empty for a script without one.
        description: First paragraph of its docstring.
        params: JSON Schema of its arguments; None takes no arguments.
        needs: Capabilities without which it does not run.
        ext_api: What it was written for.
    """

    source: str
    digest: str
    name: str = ""
    version: str = ""
    description: str = ""
    params: Mapping[str, Any] | None = None
    needs: tuple[Need, ...] = ()
    ext_api: int = EXT_API
