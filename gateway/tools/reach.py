"""What of the operator's tools cannot work here, told before the first call: addresses and commands.

Only warnings: a name may lead elsewhere a moment later, and what is missing now may be installed.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

import httpx2

from extensions.tools.egress import EgressPolicy, ascii_host
from extensions.tools.errors import EgressDenied
from extensions.tools.servers import McpServer
from gateway.tools.entries import Entry

LOOKUP_S = 3.0
"""Longest wait for all names together; of a name that is not found by then nothing is said."""

Lookup = Callable[[str], Sequence[str]]


def look_up(host: str) -> list[str]:
    """All addresses of a name.

    Raises:
        OSError: It has none.
    """
    return list(dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))


def reach_warnings(
    entries: Iterable[Entry], egress: EgressPolicy, lookup: Lookup = look_up, wait_s: float = LOOKUP_S
) -> list[str]:
    """A line for each tool or server whose calls would fail as things are.

    Args:
        entries: What the operator's file has.
        egress: What the settings allow.
        lookup: Finds addresses of names; called in threads of its own.
        wait_s: Longest wait for all names together.
    """
    places = [(entry.name, *_place(entry)) for entry in entries]
    urls = {url: httpx2.URL(url.partition("?")[0].replace("{", "x").replace("}", "x")) for _, url, _ in places if url}
    found = _addresses({ascii_host(url) for url in urls.values()}, lookup, wait_s)
    lines = []
    for name, url, server in places:
        if server is not None and server.command:
            problem = _command_problem(server)
        else:
            problem = _address_problem(urls[url], found, egress) if url else None
        if problem is not None:
            lines.append(f"{name}: {problem}")
    return lines


def _place(entry: Entry) -> tuple[str, McpServer | None]:
    """Address and server of a tool; neither for programs."""
    target = entry.target
    if isinstance(target, McpServer):
        return target.url, target
    if target.mcp is not None:
        return target.mcp.server.url, target.mcp.server
    return (target.http.url if target.http is not None else ""), None


def _command_problem(server: McpServer) -> str | None:
    command = server.command[0]
    # As it is looked for when it is started.
    if shutil.which(command, path=server.env.get("PATH", os.environ.get("PATH"))) is not None:
        return None
    return f"the command {command!r} is not found" + ("" if os.sep in command else " on the PATH")


def _address_problem(url: httpx2.URL, found: dict[str, Sequence[str] | OSError], egress: EgressPolicy) -> str | None:
    host = ascii_host(url)
    addresses = found.get(host, ())
    if isinstance(addresses, OSError):
        return f"{host} cannot be found: {addresses.strerror or addresses}"
    for address in addresses:
        try:
            real = ip_address(address.partition("%")[0])
            egress.check(real, host, is_plain=url.scheme == "http", inside=True, local=True)
        except EgressDenied as error:
            return error.detail
    return None


def _addresses(hosts: set[str], lookup: Lookup, wait_s: float) -> dict[str, Sequence[str] | OSError]:
    found: dict[str, Sequence[str] | OSError] = {}

    def find(host: str) -> None:
        try:
            found[host] = lookup(host)
        except OSError as error:
            found[host] = error
        except UnicodeError as error:
            found[host] = OSError(str(error))

    # Daemons: a resolver that does not answer holds up neither the start nor the end of the command.
    threads = [threading.Thread(target=find, args=(host,), name="look-up", daemon=True) for host in sorted(hosts)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + wait_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found)
