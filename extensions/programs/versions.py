"""Names of programs with versions: `best_of_n`, `best_of_n@1`, `best_of_n@1.2`, `best_of_n@1.2.0` (semver.org)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from extensions.errors import ArgumentsInvalid

_REFERENCE = re.compile(
    r"(?P<name>[a-z][a-z0-9_]{0,63})"
    r"(?:@(?P<version>(?:0|[1-9]\d{0,8})(?:\.(?:0|[1-9]\d{0,8})){0,2}(?:-[0-9A-Za-z.-]{1,64})?(?:\+[0-9A-Za-z.-]{1,64})?))?"
)

Precedence = tuple[tuple[int, ...], int, tuple[tuple[int, int, str], ...]]


@dataclass(frozen=True, slots=True)
class Reference:
    """Which program is meant.

    Attributes:
        name: Of the program.
        version: A version, or the beginning of one; empty is any.
    """

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    def newest(self, versions: Iterable[str]) -> str | None:
        """The newest of `versions` that is meant, or None.

        A beginning of a version means none that come before a release (`2.0.0-rc.1`); those must be named whole.
        """
        known = set(versions)
        if self.version in known:
            return self.version
        wanted = self.version.split(".") if self.version else []
        released = [one for one in known if "-" not in one and one.split("+")[0].split(".")[: len(wanted)] == wanted]
        return max(released, key=precedence, default=None)


def read_reference(text: str, param: str) -> Reference:
    """Reads `name` or `name@version`.

    Raises:
        ArgumentsInvalid: It is neither.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise ArgumentsInvalid(
            f"{text[:80]!r} is no name of a program; write name, name@1, name@1.2 or name@1.2.0", param
        )
    return Reference(match["name"], match["version"] or "")


def precedence(version: str) -> Precedence:
    """Sorts versions as semver does: releases after what came before them; what follows a `+` says nothing."""
    numbers, _, rest = version.split("+")[0].partition("-")
    parts = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in rest.split(".") if part)
    return tuple(int(part) for part in numbers.split(".")), 0 if rest else 1, parts
