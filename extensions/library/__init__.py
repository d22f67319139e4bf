"""Programs that come with the server. Each is a file of this package, named like the program."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_PACKAGE = files(__name__)


@cache
def shipped_names() -> tuple[str, ...]:
    """Names of all of them."""
    names = (entry.name for entry in _PACKAGE.iterdir())
    return tuple(sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and name[0] != "_"))


@cache
def shipped_source(name: str) -> str:
    """Text of one of them.

    Raises:
        KeyError: There is none of that name.
    """
    if name not in shipped_names():
        raise KeyError(name)
    return _PACKAGE.joinpath(f"{name}.py").read_text("utf-8")
