"""Addresses of tools: what they may look like, and arguments put into them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from extensions.tools.errors import ToolArgumentsInvalid, ToolInvalid

MAX_URL_CHARS = 8192
"""Longest address."""

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DOTS = re.compile(r"(?:\.|%2[eE]){1,2}")


def check_url(url: str, param: str, *, is_trusted: bool) -> None:
    """Checks an address that somebody registers.

    Args:
        url: It.
        param: Path of the field, for the error.
        is_trusted: An operator registers it, who may use plain HTTP inside; see `EgressPolicy`.

    Raises:
        ToolInvalid: It is none that could be used.
    """
    if len(url) > MAX_URL_CHARS or not url.isascii() or any(ord(char) <= 32 or char == "\\" for char in url):
        raise ToolInvalid(f"{param} must be an ASCII URL of at most {MAX_URL_CHARS} characters", param)
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
        # What sends it is more exact: of an address in numbers, say, or of a control character.
        httpx2.URL(_PLACE.sub("x", url))
    except (ValueError, httpx2.InvalidURL) as error:
        raise ToolInvalid(f"{param} is no URL: {error}", param) from None
    if parts.scheme not in ("https", "http") or not host:
        raise ToolInvalid(f"{param} must begin with https:// and name a host", param)
    if parts.username is not None or parts.password is not None:
        raise ToolInvalid(f"{param} must not hold a password: send it in a header", param)
    if parts.fragment:
        raise ToolInvalid(f"{param} must not have a fragment", param)
    if "{" in parts.netloc or "}" in _PLACE.sub("", url) or "{" in _PLACE.sub("", url):
        raise ToolInvalid(f"{param} may have places such as {{city}} in its path and query, nothing else", param)
    if parts.scheme == "http" and not is_trusted:
        raise ToolInvalid(f"{param} must begin with https://: plain HTTP is for an operator's own network", param)


def placeholders(url: str) -> list[str]:
    """Names of the arguments that have a place in an address."""
    return _PLACE.findall(url)


def filled(url: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """An address with arguments in their places, and those that have none.

    Raises:
        ToolArgumentsInvalid: One is no text or number, or would lead elsewhere than the address does.
    """
    rest = {name: value for name, value in arguments.items() if name not in placeholders(url)}

    def put(match: re.Match[str]) -> str:
        value = arguments[match[1]]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ToolArgumentsInvalid(f"arguments.{match[1]} must be text or a number", f"arguments.{match[1]}")
        text = quote(str(value), safe="")
        # Servers and proxies read these as "here" and "one up", escaped or not.
        if not text or _DOTS.fullmatch(text):
            raise ToolArgumentsInvalid(f"arguments.{match[1]} must not be empty or dots alone", f"arguments.{match[1]}")
        return text

    return _PLACE.sub(put, url), rest
