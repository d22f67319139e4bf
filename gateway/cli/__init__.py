"""The `wye` command line: serve, models, doctor, version."""

from gateway.cli.app import app, main

__all__ = ["app", "main"]
