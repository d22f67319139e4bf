"""`wye doctor`: what is installed, what would be used, what is missing."""

from __future__ import annotations

import typer

from gateway.cli.options import DEFAULT_HOME, HomeOption, JsonOption


def show_doctor(home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """Say what is installed, which device and kernels would be chosen and why, and what is missing."""
    from gateway.doctor.run import main

    raise typer.Exit(main(home=home.expanduser(), as_json=json))
