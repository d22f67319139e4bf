"""Where kernels that are compiled on first use are kept: below `WYE_HOME`, so that the next start finds them."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

_VARIABLES = {"TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer"}
"""Variable that a library reads when it is loaded, and the directory it gets."""


def kernels_directory(home: Path) -> Path:
    """Where they are kept in Wye's home directory."""
    return home.absolute() / "kernels"


def keep_kernels(directory: str | None = None, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tells Triton and flashinfer where to keep compiled kernels, unless they were told already.

    Must be called before these libraries are loaded. Where the directory cannot be written to, they are left to their
    own ways.

    Args:
        directory: Where; None is below `WYE_HOME`, or in the user's cache.
        environ: Where libraries look.
    """
    try:
        home = Path(environ.get("WYE_HOME") or "~/.cache/wye").expanduser()
        chosen = kernels_directory(home) if directory is None else Path(directory)
        chosen.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no place there, or a user without a home
        return
    if not os.access(chosen, os.W_OK | os.X_OK):
        return
    for variable, name in _VARIABLES.items():
        environ.setdefault(variable, str(chosen / name))
