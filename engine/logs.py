"""How log lines are written: one line for people, or one JSON object."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec


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


def set_up_logging(level: str, text: logging.Formatter, *, as_json: bool) -> None:
    """Sets up the root logger of this process, on standard error; replaces what was set up before.

    Args:
        level: Name of the least severe level that is written, in capitals.
        text: Writes lines for people.
        as_json: Write JSON objects instead.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # Libraries warn on standard error, amid the lines of a log that somebody may read as JSON.
    logging.captureWarnings(as_json)
