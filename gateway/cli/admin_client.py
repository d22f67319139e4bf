"""What the commands of administrators do with a server: one request, and its answer or one line of what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gateway.cli.console import output, print_error
from gateway.cli.exits import Exit

if TYPE_CHECKING:
    import httpx

UrlOption = Annotated[str, typer.Option("--url", envvar="WYE_URL", help="Server to talk to.")]
AdminKeyOption = Annotated[
    str,
    typer.Option("--admin-key", envvar=["WYE_ADMIN_KEY", "OPENAI_ADMIN_KEY"], help="Key of an administrator."),
]
TenantArgument = Annotated[str, typer.Argument(help="Id of a tenant, or its name if no other has that.")]

TIMEOUT_S = 30.0
MAX_PAGE = 100


class AdminClient:
    """Talks to the API of administrators. Whatever goes wrong ends the command.

    Args:
        url: Of the server.
        key: Of an administrator.
    """

    def __init__(self, url: str, key: str) -> None:
        if not key:
            raise typer.BadParameter("set WYE_ADMIN_KEY, or give the key", param_hint="--admin-key")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = key

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """One request; `path` is below /v1."""
        import httpx

        headers = {"Authorization": f"Bearer {self._key}"}
        try:
            answer = httpx.request(method, f"{self._url}/v1{path}", json=body, headers=headers, timeout=TIMEOUT_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            _fail(f"{self._url} does not answer: {error}", Exit.UNAVAILABLE)
        if not answer.is_success:
            _fail(*_reason(answer))
        return answer.json()

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """All items of a list."""
        sign, after = "&" if "?" in path else "?", ""
        while True:
            found = self.send("GET", f"{path}{sign}limit={MAX_PAGE}{after}")
            yield from found["data"]
            if not found.get("has_more"):
                return
            after = f"&after={found['last_id']}"

    def tenant(self, name: str) -> str:
        """The id of a tenant that is named by id or name."""
        if name.startswith("proj_"):
            return name
        found = [
            str(one["id"]) for one in self.pages("/organization/projects?include_archived=true") if one["name"] == name
        ]
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


def _reason(answer: httpx.Response) -> tuple[str, Exit]:
    code = {404: Exit.NOT_FOUND, 401: Exit.ACCESS_DENIED, 403: Exit.ACCESS_DENIED, 400: Exit.USAGE}
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status_code}"
    if answer.status_code == 503:
        return message, Exit.UNAVAILABLE
    return message, code.get(answer.status_code, Exit.FAILURE)


def _fail(message: str, code: Exit) -> NoReturn:
    print_error(message)
    raise typer.Exit(code)
