"""Addresses of Redis: one server, those that Sentinels name, or a cluster. No connection is made here.

    redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]                  one server; rediss:// with TLS
    unix://[[USER]:PASSWORD@]PATH[?db=N]                        the same over a socket
    redis+sentinel://[...@]HOST[:PORT],.../SERVICE[/DB]         the master of SERVICE, asked of Sentinels
    redis+cluster://[...@]HOST[:PORT],...                       a cluster, by any of its nodes

`rediss+sentinel` and `rediss+cluster` use TLS. Options follow a `?`: `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
`ssl_cert_reqs`, and of Sentinels `sentinel_username` and `sentinel_password`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")

OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "sentinel_username", "sentinel_password")
"""Of Sentinels and clusters; those of one server are redis-py's own."""

_PORTS = {"sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where a Redis is.

    Attributes:
        url: As it was given.
        kind: What there is.
        hosts: Names and ports; empty for one server.
        service: That Sentinels watch.
        db: Number of the database.
        username: None for the default one.
        password: None for none.
        is_tls: Whether connections are encrypted.
        options: See `OPTIONS`.
    """

    url: str = field(repr=False)
    kind: Literal["single", "sentinel", "cluster"]
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_tls: bool = False
    options: dict[str, str] = field(default_factory=dict, repr=False)


def parse_address(url: str) -> Address:
    """Reads an address.

    Raises:
        ValueError: It is none; the message says what is wrong with it, and holds no password.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest:
        raise ValueError(f"it must begin with {', '.join(f'{one}://' for one in SCHEMES[:-1])} or {SCHEMES[-1]}://")
    transport, _, kind = scheme.partition("+")
    if kind not in ("sentinel", "cluster"):
        return Address(url=url, kind="single", is_tls=transport == "rediss")
    parts = urlsplit(url)
    credentials, _, places = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    path = [unquote(one) for one in parts.path.split("/") if one]
    options = dict(parse_qsl(parts.query))
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"there is no option '{name[:50]}'; there are {', '.join(OPTIONS)}")
    if kind == "cluster" and path:
        raise ValueError("a cluster has one database: nothing may follow its hosts")
    if kind == "sentinel" and not 1 <= len(path) <= 2:
        raise ValueError("the name of the service that the Sentinels watch must follow their hosts: .../SERVICE")
    return Address(
        url=url,
        kind="sentinel" if kind == "sentinel" else "cluster",
        hosts=tuple(_host(one, _PORTS[kind]) for one in places.split(",")),
        service=path[0] if path else "",
        db=_number(path[1]) if len(path) == 2 else 0,
        username=unquote(username) or None,
        password=unquote(password) or None,
        is_tls=transport == "rediss",
        options=options,
    )


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    try:
        found = parts.port
    except ValueError:
        found = 0
    if not parts.hostname or found == 0:
        raise ValueError(f"'{text[:100]}' is no HOST:PORT")
    return parts.hostname, port if found is None else found


def _number(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"'{text[:50]}' is no number of a database")
    return int(text)
