"""What people see while a server starts, runs and stops."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import typer

from engine.request import EngineInfo
from gateway.banner import Banner
from gateway.cli.console import messages, output, print_warning
from gateway.cli.exits import exit_code
from gateway.cli.version import installed_version
from gateway.logs import configure_logging
from gateway.settings import Settings

if TYPE_CHECKING:
    from rich.status import Status


log = logging.getLogger("gateway.serve")


def reporter_for(settings: Settings) -> ConsoleReporter | LogReporter:
    """What tells of a server: to a person at a terminal, else in lines of its log. Sets up the log of this process."""
    configure_logging(settings)
    if settings.log_format == "json":
        return JsonReporter(settings)
    return ConsoleReporter(settings) if messages().is_terminal else LogReporter(settings)


class LogReporter:
    """Implements `gateway.serve.Reporter` with lines of the log, and the banner."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def stage(self, message: str) -> None:
        """Writes a line."""
        log.info("%s", message)

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Prints the banner."""
        print_banner(self._settings, url, info, took_s)

    def note(self, message: str) -> None:
        """Writes a line."""
        log.info("%s", message)

    def warn(self, message: str) -> None:
        """Writes a line of that level."""
        log.warning("%s", message)

    def __enter__(self) -> LogReporter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        return


class JsonReporter(LogReporter):
    """The same for programs: nothing but lines of the log, the error that ends a server included."""

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Writes a line with where and what is served."""
        fields = {"url": url, "model": self._settings.model_names[0], "device": info.device, "took_s": round(took_s, 3)}
        log.info("%(model)s is ready at %(url)s", fields)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and (code := exit_code(error)) is not None:
            log.error("%s", error, exc_info=log.isEnabledFor(logging.DEBUG))
            raise typer.Exit(code) from None


class ConsoleReporter:
    """Implements `gateway.serve.Reporter`: a spinner while something takes long, then the banner."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._console = messages()
        self._status: Status | None = None

    def stage(self, message: str) -> None:
        """Shows what is being done."""
        if self._status is None:
            self._status = self._console.status(message)
            self._status.start()
        else:
            self._status.update(message)

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Prints the banner."""
        self._stop_spinner()
        print_banner(self._settings, url, info, took_s)

    def note(self, message: str) -> None:
        """Prints a line."""
        self._stop_spinner()
        self._console.print(message, markup=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """Prints a line that stands out."""
        self._stop_spinner()
        print_warning(message)

    def __enter__(self) -> ConsoleReporter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_spinner()

    def _stop_spinner(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def print_banner(settings: Settings, url: str, info: EngineInfo, took_s: float) -> None:
    """Tells on standard output that requests are served."""
    banner = Banner(
        version=installed_version(),
        url=url,
        model=settings.model_names[0],
        num_workers=settings.workers,
        needs_key=bool(settings.api_keys or settings.admin_key),
        has_tenants=bool(settings.admin_key),
        info=info,
        took_s=took_s,
    )
    if output().is_terminal:
        _print_banner(banner)
    else:
        print(banner.text(), flush=True)


def _print_banner(banner: Banner) -> None:
    from rich.text import Text

    console = output()
    console.print(f"[bold green]Wye {banner.version} is ready[/]")
    width = max(len(label) for label, _ in banner.facts())
    for label, value in banner.facts():
        console.print(Text.assemble((f"  {label:<{width}}  ", "dim"), value), soft_wrap=True)
    for example in banner.examples():
        # In the terminal's own colour: those of a highlighter are chosen for a dark or for a light background. Not
        # wrapped: what is pasted must be what was meant.
        console.print(f"\n{example}", markup=False, soft_wrap=True)
    console.print("\n[dim]Ctrl-C stops.[/]")
