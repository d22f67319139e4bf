"""What a run gives out, on its way to the store: numbered, joined, without what an earlier life has given out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from extensions.journal.digests import digest_of
from extensions.programs.request import EventEmitted, LogWritten, RunEvent, TextEmitted
from gateway.runs.events import EVENT, LOG, TEXT, event
from gateway.state.run_store import Told

MAX_TOLD_BYTES = 256 * 2**10
"""Events that are sent to the store at once, unless one alone is larger."""

_LOG = "log"


@dataclass(slots=True)
class _Untold:
    data: bytes
    marks: Counter[str] = field(default_factory=Counter)


class Outbox:
    """Events that are not stored yet.

    A run that is gone on with gives out everything once more. What each source has given out is counted, so that this
    is left out, whatever the order in which several of them come.

    Args:
        number: Of the first event to come.
        given: What was given out in earlier lives, by source.
    """

    def __init__(self, number: int = 0, given: dict[str, int] | None = None) -> None:
        self._number = number
        self._given: Counter[str] = Counter(given or {})
        self._again: Counter[str] = Counter(self._given)
        self._texts: list[str] = []
        self._marks: Counter[str] = Counter()
        self._untold: list[_Untold] = []

    def begin_again(self) -> None:
        """What was given out up to now comes once more."""
        self._again = Counter(self._given)

    def fresh(self, one: RunEvent) -> RunEvent | None:
        """What of an event was not given out before; None for nothing."""
        match one:
            case TextEmitted(text, source):
                rest = self._rest(source, text)
                return TextEmitted(rest, source) if rest else None
            case LogWritten(text):
                rest = self._rest(_LOG, text)
                return LogWritten(rest) if rest else None
            case EventEmitted(kind, data, source) if source:
                return one if self._rest(f"{source}:{digest_of([kind, data])}", " ") else None
        return one

    def _rest(self, source: str, text: str) -> str:
        if not source:
            return text
        num_again = min(self._again[source], len(text))
        self._again[source] -= num_again
        rest = text[num_again:]
        self._given[source] += len(rest)
        self._marks[source] += len(rest)
        return rest

    def take(self, one: RunEvent) -> None:
        """Adds what is fresh."""
        match one:
            case TextEmitted(text):
                self._texts.append(text)
            case EventEmitted(kind, data):
                self.add(EVENT, event={"type": kind, "data": data})
            case LogWritten(text):
                self.add(LOG, log=text)

    def add(self, kind: str, **fields: Any) -> None:
        """Adds an event behind all texts so far."""
        self.join_texts()
        self._append(kind, fields)

    def join_texts(self) -> None:
        """What was emitted between two looks is one event."""
        if self._texts:
            self._append(TEXT, {"delta": "".join(self._texts)})
            self._texts.clear()

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        self._untold.append(_Untold(event(kind, self._number, **fields), self._marks))
        self._marks = Counter()
        self._number += 1

    @property
    def num_untold(self) -> int:
        """Events that are not stored."""
        return len(self._untold)

    def oldest(self) -> tuple[Told, int]:
        """Those to be stored next, and how many these are."""
        count = size = 0
        marks: Counter[str] = Counter()
        for one in self._untold:
            if count and size + len(one.data) > MAX_TOLD_BYTES:
                break
            count, size = count + 1, size + len(one.data) + 1
            marks.update(one.marks)
        last = self._number - len(self._untold) + count - 1
        return Told(events=[one.data for one in self._untold[:count]], last=last, marks=marks), count

    def note_stored(self, count: int) -> None:
        """The oldest so many are there."""
        del self._untold[:count]
