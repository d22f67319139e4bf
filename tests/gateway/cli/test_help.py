"""What `--help` of each command says, beside the reference in the documentation, which is read from the same place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command
from typer.testing import CliRunner

from gateway.cli import app


def _commands(context: typer.Context, *names: str) -> Iterator[tuple[str, ...]]:
    command = context.command
    yield names
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(typer.Context(child, info_name=name, parent=context), *names, name)


COMMANDS = list(_commands(typer.Context(get_command(app), info_name="wye")))


def _texts(names: tuple[str, ...]) -> list[str]:
    """Help of a command and of all that it takes, as the documentation has it."""
    command = get_command(app)
    context = typer.Context(command, info_name="wye")
    for name in names:
        assert isinstance(command, TyperGroup)
        found = command.get_command(context, name)
        assert found is not None
        command, context = found, typer.Context(found, info_name=name, parent=context)
    own = [command.help or "", command.epilog or ""]
    taken = [one for one in command.params if isinstance(one, TyperArgument | TyperOption)]
    return [text for text in [*own, *(one.help or "" for one in taken)] if text]


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_shows_each_text_as_it_is_documented(names: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"})
    assert shown.exit_code == 0, shown.output
    # Tables are drawn, and long texts may go on in the next line.
    plain = "".join(shown.stdout.replace("│", " ").split())
    missing = [text for text in _texts(names) if "".join(text.split()) not in plain]
    assert missing == []


def test_help_of_some_commands_names_versions_of_programs() -> None:
    for names in (("run",), ("runs", "start"), ("prefixes", "create")):
        assert any("NAME@VERSION" in text for text in _texts(names))
