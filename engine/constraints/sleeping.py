"""A constraint on what stands amid free text: asleep until its language begins, and again when a text of it is whole.

asleep    any token may come, and nothing is asked of llguidance
watching  what is written may be a beginning: tokens that would begin the language and go on wrongly are left out
held      the language has begun, and goes on until what it demands is whole
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.constraints.constraint import Constraint, TokenMask
from engine.constraints.waking import Thought, Waking


class SleepingConstraint(Constraint):
    """One sequence's place in free text that may hold texts of a language.

    Args:
        inner: At the beginning of the language; forked wherever one may begin.
        waking: Tells where that is.
    """

    def __init__(self, inner: Constraint, waking: Waking) -> None:
        self._inner = inner
        self._waking = waking
        self._thought = Thought(waking.opening)
        self._awake: Constraint | None = None
        self._is_held = False
        self._tail = b""
        self._begun = 0
        self._follows_call = False

    @property
    def is_complete(self) -> bool:
        """False: more text may follow always."""
        return False

    @property
    def is_accepting(self) -> bool:
        """See `Constraint.is_accepting`."""
        return not self._is_held

    @property
    def is_free(self) -> bool:
        """It sleeps."""
        return self._awake is None

    def fork(self) -> SleepingConstraint:
        """See `Constraint.fork`."""
        other = SleepingConstraint(self._inner, self._waking)
        other._thought = self._thought.fork()
        other._awake = None if self._awake is None else self._awake.fork()
        other._is_held = self._is_held
        other._tail = self._tail
        other._begun = self._begun
        other._follows_call = self._follows_call
        return other

    def advance(self, token_ids: Sequence[int]) -> None:
        """See `Constraint.advance`."""
        for token_id in token_ids:
            if self._is_held:
                self._hold(token_id)
            else:
                self._read(token_id)

    def forced(self) -> list[int]:
        """See `Constraint.forced`."""
        return self._awake.forced() if self._is_held and self._awake is not None else []

    def mask(self) -> TokenMask | None:
        """See `Constraint.mask`."""
        if self._awake is None:
            return None
        if self._is_held:
            return self._awake.mask()
        return self._waking.watching(self._tail[self._begun :], self._awake)

    def _hold(self, token_id: int) -> None:
        assert self._awake is not None
        self._awake.advance((token_id,))
        if self._awake.is_accepting:
            self._end_call(self._waking.bytes_of(token_id))

    def _end_call(self, data: bytes) -> None:
        """A text of the language ended in a token."""
        self._awake, self._is_held, self._follows_call = None, False, True
        # What stands behind the end in the same token may begin something again; what stands before it cannot.
        self._tail = data
        self._look()

    def _read(self, token_id: int) -> None:
        """Goes past a token of free text."""
        data = self._waking.bytes_of(token_id)
        if not data:
            return
        if not self._thought.is_over and (rest := self._thought.take(data)) is not None:
            self._awake, self._tail = None, rest
            if rest:
                self._look()
            return
        self._tail += data
        if b"\n" in data:
            self._follows_call = False
        if self._awake is not None:
            self._watch(token_id, data)
        elif self._waking.may_begin(data):
            self._look()
        else:
            self._tail = self._waking.shorten(self._tail)

    def _watch(self, token_id: int, data: bytes) -> None:
        """Goes past a token behind what may be a beginning."""
        assert self._awake is not None
        if not self._waking.is_text(token_id):
            self._awake = None
            self._look()
            return
        self._awake.advance((token_id,))
        self._is_held = not self._awake.is_accepting
        if self._is_held:
            return
        if self._waking.may_end(data):  # it may have begun and ended in this very token
            self._end_call(data)
        else:
            self._look()

    def _look(self) -> None:
        """Watches the place from which on the tail may be a beginning; sleeps if there is none."""
        at = self._waking.find(self._tail, follows_call=self._follows_call)
        if at is None:
            self._awake = None
            return
        if self._awake is not None and at == self._begun:
            return
        self._begun = at
        self._awake = self._inner.fork()
        self._awake.advance(self._waking.to_ids(self._tail[at:].decode("ascii")))
        self._is_held = not self._awake.is_accepting
