"""`wye version`: which Wye this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gateway.cli.console import print_json
from gateway.cli.options import JsonOption


def installed_version() -> str:
    """Version of the installed distribution; `0+unknown` for a bare source tree."""
    try:
        return version("wye")
    except PackageNotFoundError:
        return "0+unknown"


def show_version(json: JsonOption = False) -> None:
    """Print the version."""
    if not json:
        print(f"wye {installed_version()}")
        return
    import platform

    print_json({"wye": installed_version(), "python": platform.python_version(), "platform": platform.platform()})
