"""The operations of device programs, read from the table that checks them."""

from __future__ import annotations

from docs.markdown import code, table
from engine.programs.operations import FUNCTIONS, OPERATORS


def operation_table() -> str:
    """How each is called and what it gives."""
    rows = [(code(one.signature), one.meaning) for one in (*FUNCTIONS.values(), *OPERATORS.values())]
    return table(["operation", "what it gives"], rows)
