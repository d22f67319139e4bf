"""Which addresses the server talks to for its users, and connections that go to no other.

A name is looked up once for each request; every address it stands for is checked, and the connection goes to one that
was checked, so a name that means something else a moment later changes nothing. TLS and the `Host` header keep the
name. Redirects are not followed, proxies of the environment are not used, one connection pool serves one host.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from ssl import SSLContext

import httpx2

from extensions.tools.errors import EgressDenied, ToolInvalid
from extensions.tools.kept import KeptConnections

log = logging.getLogger(__name__)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

_METADATA = frozenset(map(ip_address, ("169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254")))
"""Where clouds hand credentials to whoever asks from inside: nothing allows these."""

_ODD = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "fec0::/10")))
"""IPv6 that stands for IPv4 addresses, which may be inside, and what was once meant for the inside."""

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?|\*")
_MAX_TRIED = 4
_UNNAMED = "the tool is at an address that is not allowed; its operator finds the address in the log"


@dataclass(frozen=True, kw_only=True, slots=True)
class EgressPolicy:
    """What an operator allows.

    Attributes:
        hosts: Whom programs may send requests of their own to: names, `*.example.com` for all names below one, `*` for
            all public ones. None by itself.
        networks: Networks inside that may be reached too: by the operator's own tools, and by programs at hosts that
            `hosts` names (`*` names none). Plain HTTP is for these and for this machine.
    """

    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def read(cls, hosts: Sequence[str], networks: Sequence[str]) -> EgressPolicy:
        """Reads settings.

        Raises:
            ToolInvalid: One is no host or no network.
        """
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ToolInvalid(f"{host[:80]!r} is no host: name one, or '*.example.com', or '*'", "hosts")
        found = []
        for network in networks:
            try:
                found.append(ip_network(network))
            except ValueError as error:
                raise ToolInvalid(f"{network[:80]!r} is no network: {error}", "networks") from None
        return cls(hosts=tuple(host.lower() for host in hosts), networks=tuple(found))

    def names(self, host: str) -> bool:
        """Whether `hosts` names a host, other than by `*`."""
        host = host.lower().rstrip(".")
        return any(host.endswith(one[1:]) if one.startswith("*.") else host == one for one in self.hosts if one != "*")

    def check(self, address: Address, host: str, *, is_plain: bool, inside: bool, local: bool) -> None:
        """Checks one address.

        Args:
            address: It.
            host: The name that stands for it.
            is_plain: Nothing is encrypted on the way.
            inside: `networks` are allowed.
            local: This machine is allowed.

        Raises:
            EgressDenied: The server does not talk to it. Its message names the host alone; the address and the setting
                that could allow it are its `detail`.
        """
        real = _real(address)
        is_known = real not in _METADATA and (
            (inside and any(real in one for one in self.networks if one.version == real.version))
            or (local and real.is_loopback)
        )
        if is_known:
            return
        if real in _METADATA or not _is_public(real):
            where = f"{host} is" if _is_address(host) else f"{host} is at {address}, which is"
            outside = " and not in a network of WYE_TOOL_NETWORKS" if inside and real not in _METADATA else ""
            told = (
                f"{host} is no public address" if _is_address(host) else f"{host} is at an address that is not allowed"
            )
            raise EgressDenied(told, detail=f"{where} no public address{outside}")
        if is_plain:
            raise EgressDenied(
                f"{host}: use https://", detail=f"{host} is at the public address {address}: use https://"
            )


def ascii_host(url: httpx2.URL) -> str:
    """The host of an address as it is looked up, in ASCII and lower case."""
    return url.raw_host.decode("ascii").lower()


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name, best first.

    Raises:
        OSError: It has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Connections to one host, and only to addresses that were checked.

    Args:
        policy: What is allowed.
        host: The only host; a request for another is refused.
        is_trusted: An operator named the host.
        ssl: How servers are verified; shared, for making one takes long.
        keeps: Connections that are kept for the next request.
        resolver: Looks names up.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        host: str,
        *,
        is_trusted: bool,
        ssl: SSLContext,
        keeps: int = 8,
        resolver: Resolver = resolve,
    ) -> None:
        self._policy = policy
        self._host = host.lower()
        self._is_trusted = is_trusted
        self._resolver = resolver
        self._connections = KeptConnections(ssl=ssl, keeps=keeps)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request.

        Raises:
            EgressDenied: It would go where it must not.
            httpx2.TransportError: It does not arrive, or no answer comes.
        """
        url = request.url
        host = ascii_host(url)
        if host != self._host:
            raise EgressDenied(f"a request to {self._host} must not go to {host[:253]}")
        addresses = await self._addresses(url)
        extensions = {**request.extensions}
        if not _is_address(host):
            extensions["sni_hostname"] = host
        for at, address in enumerate(addresses):
            pinned = httpx2.Request(
                request.method,
                url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._connections.handle_async_request(pinned)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if at + 1 == len(addresses):
                    raise
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._connections.aclose()

    async def _addresses(self, url: httpx2.URL) -> list[Address]:
        """Where a name leads, all of it checked."""
        host, port = ascii_host(url), url.port or (443 if url.scheme == "https" else 80)
        if url.scheme not in ("https", "http"):
            raise EgressDenied(f"only https:// is allowed, not {url.scheme[:20]}://")
        try:
            found = [ip_address(one.partition("%")[0]) for one in await self._resolver(host, port)]
        except (OSError, ValueError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{host} cannot be found: {error}", request=None) from error
        for address in found:
            try:
                self._policy.check(
                    address,
                    host,
                    is_plain=url.scheme == "http",
                    inside=self._is_trusted or self._policy.names(host),
                    local=self._is_trusted,
                )
            except EgressDenied as error:
                log.warning("not reached: %s", error.detail)
                if self._is_trusted:  # whoever calls it has not named the host, and need not know it
                    raise EgressDenied(_UNNAMED, detail=error.detail) from None
                raise
        if not found:
            raise httpx2.ConnectError(f"{host} has no address", request=None)
        return found[:_MAX_TRIED]


def _real(address: Address) -> Address:
    """An address without the IPv6 around an IPv4 one."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _is_public(address: Address) -> bool:
    if any(address in one for one in _ODD if one.version == address.version):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
