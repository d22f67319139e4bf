"""The root of the command: turns errors into one line and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from gateway.cli.console import messages, print_error
from gateway.cli.exits import Exit, exit_code


class ErrorReportingGroup(TyperGroup):
    """Runs commands; whatever they raise is shown as one line, with its traceback only if `--debug` asks for it."""

    def invoke(self, ctx: Any) -> Any:
        """As the base class; errors end as exit codes."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            messages().print("interrupted")
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except Exception as error:
            if isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "exit_code"):
                raise  # usage errors and exits: the command library itself knows what to do
            if ctx.params.get("debug"):
                import traceback

                traceback.print_exception(error)
            code = exit_code(error)
            print_error(str(error) if code is not None else _unexpected(error))
            raise typer.Exit(Exit.FAILURE if code is None else code) from None


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} (not foreseen; `wye --debug ...` shows where)"
