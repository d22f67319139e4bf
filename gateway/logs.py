"""How the gateway's processes log."""

from __future__ import annotations

import logging

from engine.logs import set_up_logging
from gateway.settings import Settings


def configure_logging(settings: Settings) -> None:
    """Sets up the root logger of this process; replaces what was set up before."""
    set_up_logging(settings.log_level.upper(), as_json=settings.log_format == "json")
    # uvicorn tells of every start and every client that goes away; neither is news here.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
