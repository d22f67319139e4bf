"""How log lines are written: one line for people, or one JSON object."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.settings import Settings


class JsonFormatter(logging.Formatter):
    """One JSON object a line; the mapping that a message was formatted with becomes its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record as JSON text."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.args, dict):
            fields |= record.args
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def configure_logging(settings: Settings) -> None:
    """Sets up the root logger of this process; replaces what was set up before."""
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    # uvicorn tells of every start and every client that goes away; neither is news here.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
