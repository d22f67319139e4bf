"""Descriptions of tools from plain data and back, with their secrets or without."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from extensions.tools.errors import ToolInvalid

HIDDEN = "***"
"""Stands for a secret wherever one would be shown."""

MAX_TIMEOUT_S = 600.0
"""Longest that a call may take."""

MAX_OUTPUT_BYTES = 16 * 2**20
"""Most that may be read of an answer."""

_FROM_ENVIRON = "env:"
_MAX_HEADERS = 64
_MAX_HEADER_CHARS = 8192
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "idempotency-key", "accept-encoding"})
_FIELD = re.compile(r"(?:unknown|required) field `(.*)`$")
_PLACE = re.compile(r" - at `(key in )?\$\.?([^`]*)`$")

T = TypeVar("T", bound="Checked")


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A description whose types are checked on their way in."""


def convert(data: object, cls: type[T], environ: Mapping[str, str] | None, secret: Sequence[str]) -> T:
    """Reads a description.

    Args:
        data: Decoded JSON or TOML.
        cls: Of what.
        environ: See `ToolSpec.from_wire`.
        secret: Paths of dicts whose values are secrets.

    Raises:
        ToolInvalid: It has other fields or types than `cls`, or a secret that is not there.
    """
    if not isinstance(data, Mapping):
        raise ToolInvalid("a description must be an object")
    plain = copy.deepcopy(dict(data))
    for path in ("", "mcp.server"):
        if "is_trusted" in (_at(plain, path) or {}):
            raise ToolInvalid("there is no field 'is_trusted'", f"{path}.is_trusted".lstrip("."))
    for path in secret:
        _read_secrets(plain, path, environ)
    if environ is not None:
        plain["is_trusted"] = True
    try:
        return msgspec.convert(plain, cls)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except RecursionError:
        raise ToolInvalid("the description is nested too deeply") from None


def _invalid(complaint: str) -> ToolInvalid:
    """What msgspec complains of, with the field at fault."""
    place, text = _PLACE.search(complaint), _PLACE.sub("", complaint)
    within = place[2] if place else ""
    field = _FIELD.search(text)
    return ToolInvalid(
        f"{within or 'the description'}: {text}", f"{within}.{field[1]}".lstrip(".") if field else within
    )


def to_wire(description: Checked, secret: Sequence[str], *, secrets: bool) -> dict[str, Any]:
    """A description as plain data.

    Args:
        description: What.
        secret: Paths of dicts whose values are secrets.
        secrets: Show them.
    """
    plain: dict[str, Any] = msgspec.to_builtins(description)
    for path in ("", "mcp.server"):
        (_at(plain, path) or {}).pop("is_trusted", None)
    for path in secret:
        found = _at(plain, path)
        if found and not secrets:
            found.update(dict.fromkeys(found, HIDDEN))
    return plain


def check_bounds(timeout_s: float, max_output_bytes: int, at: str) -> None:
    """Checks what every description has.

    Raises:
        ToolInvalid: It is out of bounds.
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ToolInvalid(f"{at}timeout_s must be above 0 and at most {MAX_TIMEOUT_S:g}", f"{at}timeout_s")
    if not 1 <= max_output_bytes <= MAX_OUTPUT_BYTES:
        raise ToolInvalid(f"{at}max_output_bytes must be from 1 to {MAX_OUTPUT_BYTES}", f"{at}max_output_bytes")


def check_headers(headers: Mapping[str, str], at: str) -> None:
    """Checks headers that are to be sent.

    Raises:
        ToolInvalid: One cannot be sent, or is one that the connection sets itself.
    """
    if len(headers) > _MAX_HEADERS:
        raise ToolInvalid(f"{at} has {len(headers)} entries, at most {_MAX_HEADERS} are allowed", at)
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ToolInvalid(f"{at}: {name[:80]!r} is no name of a header", at)
        if name.lower() in _OURS:
            raise ToolInvalid(f"{at}: {name!r} is set by the server itself", f"{at}.{name}")
        if (
            len(value) > _MAX_HEADER_CHARS
            or not value.isascii()
            or any(ord(char) < 32 and char != "\t" for char in value)
        ):
            raise ToolInvalid(f"{at}.{name} must be printable ASCII of at most {_MAX_HEADER_CHARS}", f"{at}.{name}")


def _at(plain: dict[str, Any], path: str) -> dict[str, Any] | None:
    found: Any = plain
    for part in path.split(".") if path else ():
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


def _read_secrets(plain: dict[str, Any], path: str, environ: Mapping[str, str] | None) -> None:
    """Puts values of the environment in the place of references to them."""
    found = _at(plain, path)
    for name, value in list((found or {}).items()):
        if not isinstance(value, str) or not value.startswith(_FROM_ENVIRON):
            continue
        variable = value.removeprefix(_FROM_ENVIRON)
        if environ is None:
            message = f"{path}.{name}: only the operator's own file may refer to the server's environment"
            raise ToolInvalid(message, f"{path}.{name}")
        if not environ.get(variable):
            raise ToolInvalid(f"{path}.{name}: the environment has no {variable}", f"{path}.{name}")
        assert found is not None
        found[name] = environ[variable]
