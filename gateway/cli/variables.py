"""Variables that begin with `WYE_` and that nothing reads: a misspelt `WYE_API_KEYS` would leave a server open."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

PREFIX = "WYE_"

BESIDE_SETTINGS = frozenset(
    {
        # Options of commands.
        "WYE_ATTENTION_SCORES",
        "WYE_DEBUG",
        "WYE_HOME",
        "WYE_KV_DTYPE",
        "WYE_KV_HOST_BYTES",
        "WYE_STEP",
        "WYE_THREADS",
        "WYE_URL",
        "WYE_WEIGHTS",
        # Clients, in what a started server shows to paste.
        "WYE_KEY",
        # The engine.
        "WYE_NATIVE_FORM",
        "WYE_PROGRAM_GRAPHS",
        "WYE_PROMPT_GRAPHS",
        # Builds.
        "WYE_NATIVE",
        "WYE_NATIVE_CACHE",
    }
)
"""What people set beside the fields of `Settings`."""

INTERNAL = frozenset(
    {
        "WYE_CARD_CASE",
        "WYE_SANITIZE_FORMS",
        "WYE_TEST_DEVICE",
        "WYE_TEST_HISTORIES",
        "WYE_TEST_MODEL",
        "WYE_WORKER",
    }
)
"""What tests, measurements and a server's own processes set; never proposed for a misspelt name."""


class ReadVariables(Mapping[str, str]):
    """An environment that remembers which of its variables were asked for.

    Args:
        environ: The environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


def setting_variables() -> frozenset[str]:
    """The variables of `Settings`."""
    from gateway.settings import Settings

    return frozenset(PREFIX + name.upper() for name in Settings.model_fields)


def unread_variables(environ: Mapping[str, str], also_read: Collection[str] = ()) -> list[str]:
    """A line for each variable of ours that no part of the product reads.

    Args:
        environ: The environment.
        also_read: Further names that something reads, as secrets that the operator's file of tools refers to.

    Returns:
        Sentences that name the variable, and the setting that its name is like; never its value.
    """
    settings = setting_variables()
    meant = sorted(settings | BESIDE_SETTINGS)
    lines = []
    for name in sorted(environ):
        # Settings are found in small letters too, other variables are not.
        if not name.upper().startswith(PREFIX) or name.upper() in settings:
            continue
        if name in BESIDE_SETTINGS or name in INTERNAL or name in also_read:
            continue
        near = difflib.get_close_matches(name.upper(), meant, n=1, cutoff=0.8)
        lines.append(f"{name} is no setting" + (f"; did you mean {near[0]}?" if near else "; nothing reads it"))
    return lines
