"""The `wye` command. Everything heavy is imported by the command that needs it: `wye --help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli import doctor, keys, models, prefixes, programs, quotas, runs, serve, tenants, tools, usage, version
from gateway.cli.exits import help_text
from gateway.cli.group import ErrorReportingGroup

app = typer.Typer(
    name="wye",
    cls=ErrorReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Wye serves language models over the OpenAI API.",
    epilog=help_text(),
)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", envvar="WYE_DEBUG", help="Show tracebacks of errors.")] = False,
) -> None:
    """Wye serves language models over the OpenAI API."""


app.command()(serve.serve)
app.command("run")(programs.run_program)
app.command("check")(programs.check_program)
app.command("new")(programs.new_program)
app.add_typer(models.app, name="models")
app.add_typer(prefixes.app, name="prefixes")
app.add_typer(runs.app, name="runs")
app.add_typer(tools.app, name="tools")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(quotas.app, name="quotas")
app.command("usage")(usage.show_usage)
app.command("audit")(usage.show_audit)
app.command("doctor")(doctor.show_doctor)
app.command("version")(version.show_version)


def main() -> None:
    """Console script `wye`; see `gateway.cli.exits` for its exit codes."""
    app(prog_name="wye")
