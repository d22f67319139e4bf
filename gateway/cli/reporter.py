"""What people see while a server starts, runs and stops."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from engine.request import EngineInfo
from gateway.banner import Banner
from gateway.cli.console import messages, output, print_warning
from gateway.cli.version import installed_version
from gateway.logs import configure_logging
from gateway.settings import Settings

if TYPE_CHECKING:
    from rich.status import Status


log = logging.getLogger(__name__)


class LogReporter:
    """Implements `gateway.serve.Reporter` with lines of the log, for servers whose log is read by programs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        configure_logging(settings)

    def stage(self, message: str) -> None:
        """Writes a line."""
        log.info("%s", message)

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Writes a line with where and what is served."""
        fields = {"url": url, "model": self._settings.model_names[0], "device": info.device, "took_s": round(took_s, 3)}
        log.info("%(model)s is ready at %(url)s", fields)

    def note(self, message: str) -> None:
        """Writes a line."""
        log.info("%s", message)

    def warn(self, message: str) -> None:
        """Writes a line of that level."""
        log.warning("%s", message)

    def __enter__(self) -> LogReporter:
        return self

    def __exit__(self, *_: object) -> None:
        return


def reporter_for(settings: Settings) -> ConsoleReporter | LogReporter:
    """What tells of a server in the form of its log."""
    return LogReporter(settings) if settings.log_format == "json" else ConsoleReporter(settings)


class ConsoleReporter:
    """Implements `gateway.serve.Reporter`: a spinner while something takes long, then the banner."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._console = messages()
        self._status: Status | None = None

    def stage(self, message: str) -> None:
        """Shows what is being done."""
        if not self._console.is_terminal:
            self._console.print(f"{message} ...", markup=False)
        elif self._status is None:
            self._status = self._console.status(message)
            self._status.start()
        else:
            self._status.update(message)

    def ready(self, url: str, info: EngineInfo, took_s: float) -> None:
        """Prints the banner."""
        self._stop_spinner()
        banner = Banner(
            version=installed_version(),
            url=url,
            model=self._settings.model_names[0],
            num_workers=self._settings.workers,
            needs_key=bool(self._settings.api_keys or self._settings.admin_key),
            has_tenants=bool(self._settings.admin_key),
            info=info,
            took_s=took_s,
        )
        console = output()
        if console.is_terminal:
            _print_banner(banner)
        else:
            print(banner.text(), flush=True)

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
