"""The listening socket, taken before anything slow is done and shared by all gateway workers."""

from __future__ import annotations

import errno
import os
import socket

from gateway.failures import AddressUnavailable

BACKLOG = 2048


def bind_socket(host: str, port: int) -> socket.socket:
    """Takes an address; nobody is let in before `listen` is called.

    Args:
        host: Name or address of an interface of this machine.
        port: TCP port; 0 takes a free one.

    Raises:
        AddressUnavailable: Another program listens there, we may not, or the host is not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressUnavailable(f"{host!r} is no address of this machine: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        # A port whose last connections are still winding down may be taken again; one in use may not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(_explain(error, host, port)) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Lets clients in; they wait until a worker accepts.

    Raises:
        AddressUnavailable: Another program was faster.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise AddressUnavailable(_explain(error, host, port)) from error


def url_of(listener: socket.socket) -> str:
    """Address at which this machine reaches the socket, without a path."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use by another program; stop it, or choose another one with --port"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} may not be used by this user; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; use 127.0.0.1 for this machine alone, 0.0.0.0 for all"
    return f"port {port} of {host} cannot be used: {os.strerror(error.errno or 0)}"
