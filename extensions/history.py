"""A token history, and what its owner does to it: each change at once, and passed on to the engine that holds it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine.client import EngineClient
from engine.contexts.edits import Edit, add_edit, cut_edits
from engine.text.model import TextModel
from extensions.context_link import ContextLink


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a history to go back to.

    Attributes:
        length: Tokens before it.
        fingerprint: Of those tokens.
        edits: What was hidden and dropped then.
    """

    length: int
    fingerprint: bytes
    edits: tuple[Edit, ...]


class History:
    """Tokens and edits. Nothing changes while something computes on it, nor once it is released.

    Attributes:
        token_ids: The history; change it by the methods alone.
    """

    def __init__(
        self,
        engine: EngineClient,
        text: TextModel,
        token_ids: Sequence[int] = (),
        *,
        account: str = "",
        salt: str = "",
        adapter: str = "",
        link: ContextLink | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> None:
        self._engine = engine
        self._text = text
        self._link = ContextLink(engine, account=account, salt=salt, adapter=adapter) if link is None else link
        self._edits = edits
        self._is_busy = False
        self._is_released = False
        self.token_ids: list[int] = []
        if link is None:
            self.append(token_ids)
        else:
            self.token_ids += token_ids

    @property
    def length(self) -> int:
        """Tokens in the history."""
        return len(self.token_ids)

    @property
    def is_busy(self) -> bool:
        """True while something computes on it."""
        return self._is_busy

    @property
    def is_released(self) -> bool:
        """True once `release` was called."""
        return self._is_released

    def append(self, token_ids: Sequence[int]) -> None:
        """Adds tokens; they are computed when somebody computes on the context.

        Raises:
            ValueError: The context is released or busy, or an id is outside of the vocabulary.
        """
        self._check()
        self._check_ids(token_ids)
        self.token_ids += token_ids

    def mark(self) -> Mark:
        """The end of the history, to `rewind` to.

        Raises:
            ValueError: The context is released or busy.
        """
        self._check()
        return Mark(self.length, _fingerprint(self.token_ids), self._edits)

    def rewind(self, mark: Mark) -> None:
        """Goes back to a mark of this context, or of one that this was forked from.

        Raises:
            ValueError: The context is released or busy, or the history before the mark is another by now.
        """
        self._check()
        if mark.length > self.length or _fingerprint(self.token_ids[: mark.length]) != mark.fingerprint:
            raise ValueError("the history no longer begins with what the mark stands for")
        self._reshape(mark.length, mark.edits)

    def truncate(self, length: int) -> None:
        """Cuts the history; pages after its new end are free at once.

        Raises:
            ValueError: The context is released or busy, or shorter.
        """
        self._check()
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be between 0 and {self.length}, got {length}")
        if length < self.length:
            self._reshape(length, cut_edits(self._edits, length))

    def hide(self, start: int, stop: int) -> None:
        """Lets what is predicted from now on not attend to a span; what was computed while seeing it stays.

        The last token is computed again without the span, for the next prediction is made from it. A token always
        sees itself.

        Raises:
            ValueError: The context is released or busy, or the span is not in the history.
        """
        self._edit(start, stop, drops=False)

    def drop(self, start: int, stop: int) -> None:
        """Hides a span and frees its whole pages; positions stay.

        Raises:
            ValueError: The context is released or busy, or the span is not in the history.
        """
        self._edit(start, stop, drops=True)

    def forget(self, start: int, stop: int) -> None:
        """Takes tokens out as if they had never been there: what follows is computed again.

        What was hidden or dropped after them is seen again.

        Raises:
            ValueError: The context is released or busy, or the span is not in the history.
        """
        self._check()
        self._check_span(start, stop)
        rest = self.token_ids[stop:]
        self.truncate(start)
        self.token_ids += rest

    def release(self) -> None:
        """Lets go of everything; what computes on it ends with `SequenceNotFound`. Idempotent."""
        if not self._is_released:
            self._is_released = True
            self._link.release()

    def _edit(self, start: int, stop: int, *, drops: bool) -> None:
        self._check()
        self._check_span(start, stop)
        self._reshape(self.length, add_edit(self._edits, start, stop, self.length, drops=drops))

    def _reshape(self, length: int, edits: tuple[Edit, ...]) -> None:
        if (length, edits) != (self.length, self._edits):
            del self.token_ids[length:]
            self._edits = edits
            self._link.truncate(length, edits)

    def _check(self) -> None:
        if self._is_released:
            raise ValueError("the context is released")
        if self._is_busy:
            raise ValueError("something computes on the context already")

    @property
    def _vocab_size(self) -> int:
        return self._engine.info.vocab_size if self._engine.is_ready else self._text.tokenizer.vocab_size

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        size = self._vocab_size
        if min(token_ids) < 0 or max(token_ids) >= size:
            raise ValueError(f"token ids must be between 0 and {size - 1}")

    def _check_span(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.length:
            raise ValueError(f"a span must lie within 0 and {self.length}, got {start} to {stop}")


def _fingerprint(token_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16).digest()
