"""Where in free text a language begins: told token by token, for next to nothing as long as it does not."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from engine.constraints.constraint import Constraint, TokenMask
from engine.constraints.vocabulary import VocabularyBytes
from engine.request import Opening

MAX_KEPT = 256
"""Masks kept of texts that may be beginnings: few are written again and again, a bracket or a brace alone."""

MAX_TAIL = 1024
"""Bytes of a text that are kept, at least, until a beginning can no longer be among them."""

_JUMP = r"[\x00-\x7f]{0,64}"
"""What the token that completes a marker may have behind it."""

_LAST = re.compile(rb"[\])}]")

_NOWHERE = b"\x00"
"""Stands for text that was cut off in front: no line begins there."""


class Waking:
    """What is known of an opening and a vocabulary; shared by all texts.

    Attributes:
        opening: As it was asked for.

    Args:
        opening: Where the language begins.
        vocabulary: Of the model.
        to_ids: ASCII text to ids of tokens with these bytes.
    """

    def __init__(self, opening: Opening, vocabulary: VocabularyBytes, to_ids: Callable[[str], list[int]]) -> None:
        self.opening = opening
        self._special = _mask_of(vocabulary)
        self._kept: OrderedDict[bytes, TokenMask] = OrderedDict()
        self.to_ids = to_ids
        self._tokens = vocabulary.tokens
        named = {text.encode() for text in (*opening.markers, *opening.thought)}
        self._special_ids = frozenset(vocabulary.special_ids)
        # A special token has no place in what the reader sees, unless it is one of the markers.
        self._hidden = frozenset(at for at in vocabulary.special_ids if vocabulary.tokens[at] not in named)
        blank = "|".join(["[ \\t\\r,;}]", *map(re.escape, opening.closers)])
        marked = "|".join(begun([*map(re.escape, marker), _JUMP]) for marker in opening.markers) or "(?!)"
        line = opening.line or "(?!)"
        self._at_line = re.compile(rf"(?:(?:\A|\n)(?:{blank})*(?P<line>{line})|(?P<mark>{marked}))\Z".encode())
        self._anywhere = re.compile(rf"(?:(?P<line>{line})|(?P<mark>{marked}))\Z".encode())
        self._blank = re.compile(rf"(?:{blank})*".encode())
        firsts = {"{", "[", *(marker[0] for marker in opening.markers)}
        self._firsts = re.compile(f"[{''.join(map(re.escape, sorted(firsts)))}]".encode())

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the text that is looked at."""
        return b"" if token_id in self._hidden else self._tokens[token_id]

    def is_text(self, token_id: int) -> bool:
        """False for special tokens."""
        return token_id not in self._special_ids

    def may_begin(self, data: bytes) -> bool:
        """False for nearly all tokens: no beginning begins in them."""
        return self._firsts.search(data) is not None

    def may_end(self, data: bytes) -> bool:
        """Whether a text of the language may end in a token: with a bracket of some kind."""
        return _LAST.search(data) is not None

    def watching(self, text: bytes, constraint: Constraint) -> TokenMask:
        """What may follow a text that may be a beginning; special tokens are free there.

        Args:
            text: It, from where it may begin.
            constraint: At its end.

        Raises:
            ConstraintBroken: Finding out would take too long.
        """
        mask = self._kept.get(text)
        if mask is None:
            found = constraint.mask()
            assert found is not None
            mask = self._kept[text] = found | self._special
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(text)
        return mask

    def find(self, tail: bytes, *, follows_call: bool) -> int | None:
        """Where in the end of a text the language may be beginning; None for nowhere.

        Args:
            tail: The end of the text.
            follows_call: A text of the language ended on the same line: another one may follow there.
        """
        found = (self._anywhere if follows_call else self._at_line).search(tail)
        return None if found is None else found.start("line" if found["line"] is not None else "mark")

    def shorten(self, tail: bytes) -> bytes:
        """A tail in which no beginning has begun, shorter if it has grown long; tells the same of what follows."""
        if len(tail) <= MAX_TAIL:
            return tail
        at = tail.rfind(b"\n") + 1
        if (at or tail[:1] != _NOWHERE) and self._blank.fullmatch(tail, at):
            return b"\n"
        return _NOWHERE + tail[-MAX_TAIL // 2 :]


class Thought:
    """The thinking at the beginning of a text, as far as it matters: whether it goes on.

    Args:
        opening: Says how it is marked, and whether it has begun.
    """

    def __init__(self, opening: Opening) -> None:
        self._start, self._end = (marker.encode() for marker in opening.thought or ("", ""))
        self._text = b""
        self._may_begin = bool(opening.thought) and not opening.in_thought
        self.goes_on = bool(opening.thought) and opening.in_thought

    @property
    def is_over(self) -> bool:
        """There is none, and will be none."""
        return not (self._may_begin or self.goes_on)

    def fork(self) -> Thought:
        """Another one at the same place."""
        other = Thought.__new__(Thought)
        other.__dict__.update(self.__dict__)
        return other

    def take(self, data: bytes) -> bytes | None:
        """Takes more text; returns what follows the thinking once that is over, None if this text is none of it."""
        if self._may_begin:
            self._text += data
            shown = self._text.lstrip()
            if shown.startswith(self._start):
                self._may_begin, self.goes_on = False, True
                data, self._text = shown[len(self._start) :], b""
            else:
                self._may_begin = self._start.startswith(shown)
        if not self.goes_on:
            return None
        self._text += data
        before, marker, rest = self._text.partition(self._end)
        self._text = before[-len(self._end) :]
        self.goes_on = not marker
        return rest


def begun(atoms: list[str]) -> str:
    """A regular expression of all beginnings of a sequence of others, but for the empty one."""
    text = ""
    for atom in reversed(atoms):
        text = f"{atom}(?:{text})?" if text else atom
    return text


def _mask_of(vocabulary: VocabularyBytes) -> TokenMask:
    bits = np.zeros(-(-len(vocabulary.tokens) // 32) * 32, dtype=np.uint8)
    bits[[*vocabulary.special_ids, *vocabulary.eos_token_ids]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
