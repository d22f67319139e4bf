"""What the commands of administrators do with a server: one request, and its answer or one line of what is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import typer

from gateway.cli.console import output, print_error
from gateway.cli.exits import Exit

UrlOption = Annotated[str, typer.Option("--url", envvar="WYE_URL", help="Server to talk to.")]
AdminKeyOption = Annotated[
    str,
    typer.Option("--admin-key", envvar=["WYE_ADMIN_KEY", "OPENAI_ADMIN_KEY"], help="Key of an administrator."),
]
TenantArgument = Annotated[str, typer.Argument(help="Id of a tenant, or its name if no other has that.")]


class AdminClient:
    """Talks to the API of administrators. Whatever goes wrong ends the command.

    Args:
        url: Of the server.
        key: Of an administrator.
    """

    def __init__(self, url: str, key: str) -> None:
        if not key:
            raise typer.BadParameter("set WYE_ADMIN_KEY, or give the key", param_hint="--admin-key")
        # Here: with what it imports, commands that talk to nobody would start later.
        from gateway.cli.api_client import ApiClient

        self._client = ApiClient(url, key, "/v1")

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """One request; `path` is below /v1."""
        with _ending():
            return self._client.send(method, path, body)

    def pages(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """All items of a list."""
        with _ending():
            yield from self._client.items(path, **params)

    def tenant(self, name: str) -> str:
        """The id of a tenant that is named by id or name."""
        if name.startswith("proj_"):
            return name
        everybody = self.pages("/organization/projects", include_archived="true")
        found = [str(one["id"]) for one in everybody if one["name"] == name]
        if not found:
            _fail(f"there is no tenant '{name}'", Exit.NOT_FOUND)
        if len(found) > 1:
            _fail(f"several tenants are called '{name}': {', '.join(found)}", Exit.USAGE)
        return found[0]


def show_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows in columns."""
    lines = [[*titles], *([str("-" if value is None else value) for value in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(titles))]
    for line in lines:
        print("  ".join(f"{value:<{width}}" for value, width in zip(line, widths, strict=True)).rstrip())


def show_pairs(pairs: Mapping[str, object]) -> None:
    """Names and values, a line each."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        output().print(f"{name:<{width}}  {'-' if value is None else value}", markup=False, soft_wrap=True)


def when(seconds: float | None) -> str | None:
    """A time for people, in UTC; None for none."""
    return None if not seconds else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Ends the command with the reason of a request that failed."""
    from gateway.cli.api_client import RequestFailed

    try:
        yield
    except RequestFailed as error:
        _fail(error.message, Exit.USAGE if error.status == 400 else error.code)


def _fail(message: str, code: Exit) -> NoReturn:
    print_error(message)
    raise typer.Exit(code)
