"""The reference of the `wye` command, read from the command itself."""

from __future__ import annotations

from collections.abc import Iterator

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from docs.markdown import code, table
from gateway.cli import app
from gateway.cli.exits import MEANINGS


def cli_reference() -> str:
    """Every command with its arguments and options."""
    command = get_command(app)
    return "\n\n".join(_sections(typer.Context(command, info_name="wye")))


def exit_code_table() -> str:
    """How commands end."""
    return table(["exit code", "meaning"], [(str(int(number)), meaning) for number, meaning in MEANINGS.items()])


def _sections(context: typer.Context) -> Iterator[str]:
    command = context.command
    if not isinstance(command, TyperGroup):
        yield _section(context)
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _sections(typer.Context(child, info_name=name, parent=context))


def _section(context: typer.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## `{context.command_path}`", (command.help or "").strip(), f"```text\n{usage}\n```"]
    parameters = [item for item in command.get_params(context) if isinstance(item, TyperArgument | TyperOption)]
    records = [parameter.get_help_record(context) for parameter in parameters if parameter.name != "help"]
    rows = [(code(" ".join(names.split())), text) for names, text in filter(None, records)]
    return "\n\n".join([*parts, table(["argument or option", "meaning"], rows)] if rows else parts)
