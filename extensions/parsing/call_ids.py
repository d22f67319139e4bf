"""Ids of calls."""

from __future__ import annotations

import uuid

from extensions.parsing.formats import ToolFormat


def new_call_id(tool_format: ToolFormat) -> str:
    """An id that no other call has; Mistral's templates take nine letters or digits and nothing else."""
    unique = uuid.uuid4().hex
    return unique[:9] if tool_format.name == "mistral" else f"call_{unique[:24]}"
