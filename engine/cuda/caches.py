"""Where kernels that are compiled on first use are kept: below `WYE_HOME`, so that the next start finds them."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

_VARIABLES = {"TRITON_CACHE_DIR": "triton", "FLASHINFER_WORKSPACE_BASE": "flashinfer"}
"""Variable that a library reads when it is loaded, and the directory it gets."""


def kernels_directory(environ: Mapping[str, str]) -> Path:
    """`kernels` in Wye's home directory.

    Raises:
        RuntimeError: `WYE_HOME` is not set, and the user has no home directory.
    """
    return Path(environ.get("WYE_HOME") or "~/.cache/wye").expanduser().absolute() / "kernels"


def keep_kernels(environ: MutableMapping[str, str] = os.environ) -> None:
    """Tells Triton and flashinfer where to keep compiled kernels, unless they were told already.

    Must be called before these libraries are loaded. Where Wye's directory cannot be written to, they are left to
    their own ways.
    """
    try:
        directory = kernels_directory(environ)
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        return
    for variable, name in _VARIABLES.items():
        environ.setdefault(variable, str(directory / name))
