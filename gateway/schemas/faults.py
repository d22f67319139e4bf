"""What a schema complains of, as clients are told it: the path of a field, and a reason in words.

A path is written the same way everywhere: `.name` for a member of an object, whatever the name is, and `[2]` for an
entry of a list, counted from 0: `messages[0].content`, `logit_bias.5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

TAG = "="
"""Begins the tags of alternatives, which are no part of a field's path."""

MISSING_ONE = "missing_one"
"""Kind of the fault of an object that has none of several fields."""

_TYPE_NAME = re.compile(r"str|int|float|bool|(list|dict|literal)\[.*\]")

_TYPE_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
}
_TYPE_FAULTS = {"string_type", "int_type", "float_type", "bool_type", "list_type", "dict_type", "literal_error"}

OBJECT_WORDS = "it must be an object"

PATTERN_WORDS = {
    r"^[A-Za-z0-9_-]{1,64}$": "it must have 1 to 64 letters of a-z and A-Z, digits, '_' and '-', nothing else",
    r"^[A-Za-z0-9_-]{1,128}$": "it must have 1 to 128 letters of a-z and A-Z, digits, '_' and '-', nothing else",
    r"^[A-Za-z0-9_.-]{1,64}$": "it must have 1 to 64 letters of a-z and A-Z, digits, '_', '.' and '-', nothing else",
    r"^[A-Za-z0-9_.-]*$": "it must have letters of a-z and A-Z, digits, '_', '.' and '-', nothing else",
    r"^[A-Za-z0-9_-]{4}$": "it must have 4 letters of a-z and A-Z, digits, '_' and '-', nothing else",
    r"^[0-9a-z_]*$": "it must have letters of a-z, digits and '_', nothing else",
    r"^[0-9a-f]{64}$": "it must have 64 hexadecimal digits",
    r"^key_[0-9a-z]{16}$": "it must be 'key_' and 16 digits or letters of a-z",
    r"^proj_[0-9a-z]{1,40}$": "it must be 'proj_' and 1 to 40 digits or letters of a-z",
    r"^wye\.tenants$": "it must be 'wye.tenants'",
}
"""What the patterns of fields ask for."""


class Fault(NamedTuple):
    """One thing that is wrong.

    Attributes:
        kind: In pydantic's terms.
        path: Of the field, below what was checked; empty for the whole.
        reason: Why it cannot be, as the rest of a sentence.
    """

    kind: str
    path: str
    reason: str


def fault_of(error: ValidationError, value: object) -> Fault:
    """The first thing that is wrong with `value`, which was checked."""
    first, loc, reason = _first_fault(error.errors(include_url=False, include_input=False))
    path = _path([part for part in loc if not str(part).startswith((TAG, "[key]"))], value)
    path = (path + first.get("ctx", {}).get("at", "")).lstrip(".")
    return Fault(first["type"], path, reason)


def exactly_one(*, needed: bool = True, **given: object) -> None:
    """Refuses an object that has none or several of some fields; the error names one of them.

    Args:
        needed: Whether there must be one.
        given: Each field, None where the client left it out.

    Raises:
        PydanticCustomError: There is none that is needed, or a second.
    """
    found = [name for name, value in given.items() if value is not None]
    if needed and not found:
        *others, last = given
        names = ", ".join(f"'{name}'" for name in others)
        raise PydanticCustomError(MISSING_ONE, "{names}", {"at": f".{others[0]}", "names": f"{names} or '{last}'"})
    if len(found) > 1:
        message = "it cannot be used together with '{other}'"
        raise PydanticCustomError("exclusive", message, {"at": f".{found[1]}", "other": found[0]})


def _reason(first: ErrorDetails) -> str:
    """Pydantic's own words name classes and show patterns."""
    context = first.get("ctx", {})
    if first["type"] == "too_short":
        return f"it must not have fewer entries than {context['min_length']}"
    if first["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return OBJECT_WORDS
    if first["type"] == "string_pattern_mismatch":
        return PATTERN_WORDS.get(first["ctx"]["pattern"], first["msg"])
    return first["msg"]


def _path(places: Iterable[int | str], value: object) -> str:
    """The path of a place in what the client sent; whole numbers are names there if the client has an object there."""
    path = ""
    for place in places:
        if isinstance(value, dict):
            path += f".{place}"
            value = value.get(str(place))
        else:
            path += f"[{place}]" if isinstance(place, int) else f".{place}"
            value = value[place] if isinstance(value, list) and isinstance(place, int) and place < len(value) else None
    return path.lstrip(".")


def _first_fault(errors: list[ErrorDetails]) -> tuple[ErrorDetails, tuple[int | str, ...], str]:
    """The first fault, its path and its reason; of what may be of several types, that of the type that fits it best.

    Such a field has a fault for each type, with the type's name behind the field's in its path.
    """
    loc = errors[0]["loc"]
    for depth, part in enumerate(loc):
        if not _TYPE_NAME.fullmatch(str(part)):
            continue
        rivals = [one for one in errors if len(one["loc"]) > depth and one["loc"][:depth] == loc[:depth]]
        names = {str(one["loc"][depth]) for one in rivals}
        if len(names) > 1 and all(map(_TYPE_NAME.fullmatch, names)):
            best = max(rivals, key=lambda one: len(one["loc"]))
            fits_none = all(len(one["loc"]) == depth + 1 and one["type"] in _TYPE_FAULTS for one in rivals)
            reason = _one_of([str(one["loc"][depth]) for one in rivals]) if fits_none else _reason(best)
            return best, best["loc"][:depth] + best["loc"][depth + 1 :], reason
    return errors[0], loc, _reason(errors[0])


def _one_of(types: list[str]) -> str:
    """Says which types something may be of."""
    *words, last = dict.fromkeys(_in_words(name) for name in types)
    return f"it must be {', '.join(words)} or {last}" if words else f"it must be {last}"


def _in_words(name: str) -> str:
    kind, _, inside = name.partition("[")
    return inside.removesuffix("]").replace(",", ", ") if kind == "literal" else _TYPE_WORDS[kind]
