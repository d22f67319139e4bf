"""How log lines are written by all processes of a server: one line for people, or one JSON object."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Lines for people: when, how bad, where in the code (which says what kind of process), what."""


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


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Sets up the root logger of this process, on standard error; replaces what was set up before.

    Args:
        level: Name of the least severe level that is written, in capitals.
        as_json: Write JSON objects, not lines for people.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # Libraries warn on standard error, amid the lines of a log that somebody may read as JSON.
    logging.captureWarnings(as_json)
