"""Names of tools whose schemas are to be kept to the letter: only calls in the shapes that the output is held to count.

The shapes are those of `extensions.parsing.held`. Models write calls in others too; such a text is no call then, for
nothing has seen to it that its arguments match.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from extensions.parsing.parts import Call

SPACE = r"[ \t\r\n]{0,16}"
"""Between the words of a call before its arguments."""

NAME = "[A-Za-z0-9_-]{1,64}"
KEY = "(?:arguments|parameters)"

Atoms = list[str]
"""Regular expressions that match one after the other."""


def heads(name: str, key: str = KEY) -> list[Atoms]:
    """The shapes of a call up to its arguments.

    Args:
        name: What matches the name.
        key: What matches the key of the arguments.
    """
    rest = [*map(_literally, ('"name"', ":")), ['"', name, '"'], _literally(","), ['"', key, '"'], _literally(":")]
    return [_spaced([_literally("{"), *start, *rest]) for start in ([], _TYPE)]


def wrap() -> Atoms:
    """What may stand around a call, up to that."""
    return _spaced([_literally("{"), *_TYPE, *map(_literally, ('"function"', ":"))])


def either(shapes: Iterable[Atoms]) -> str:
    """A regular expression of several shapes."""
    return f"(?:{'|'.join(map(''.join, shapes))})"


def _literally(text: str) -> Atoms:
    return [re.escape(char) for char in text]


def _spaced(words: Iterable[Atoms]) -> Atoms:
    """Words with white space between them."""
    return [atom for word in words for atom in (SPACE, *word)][1:]


_TYPE = [_literally(word) for word in ('"type"', ":", '"function"', ",")]
_PYTHON = re.compile(rf"\[{NAME}\(")


class HeldNames(frozenset[str]):
    """Names of tools whose calls only count in shapes that were held to their schemas.

    Attributes:
        is_pythonic: Calls in Python's spelling are such a shape.
    """

    is_pythonic: bool

    def __new__(cls, names: Iterable[str], *, is_pythonic: bool = False) -> HeldNames:
        """Some names."""
        self = super().__new__(cls, names)
        self.is_pythonic = is_pythonic
        return self


def may_be_json(
    names: Collection[str], texts: Sequence[str], calls: Sequence[Call], *, are_listed: bool = False
) -> bool:
    """Whether calls as JSON count.

    Args:
        names: Of the given tools.
        texts: The objects that they were read from.
        calls: What they say.
        are_listed: They stand in a list, where none may be wrapped.
    """
    if not isinstance(names, HeldNames):
        return True
    if len(texts) != len(calls):
        return False
    return all(_shape(call.name, are_listed).match(text) for text, call in zip(texts, calls, strict=True))


def may_be_python(names: Collection[str], text: str) -> bool:
    """Whether calls in Python's spelling count, by the bracket and the first name."""
    return not isinstance(names, HeldNames) or (names.is_pythonic and _PYTHON.match(text) is not None)


@lru_cache(maxsize=1024)
def _shape(name: str, is_listed: bool) -> re.Pattern[str]:
    """What an object that calls a tool begins with."""
    call = either(heads(name))
    start = "" if is_listed else f"(?:{''.join(wrap())}{SPACE})?"
    return re.compile(rf"{start}{call}{SPACE}\{{")
