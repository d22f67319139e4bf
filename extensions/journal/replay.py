"""A journal of an earlier life of a run, by what is asked of it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from engine.request import TokenEvent
from extensions.journal.entries import Begun, Called, Closed, Done, Ended, Entry, Settled, Streamed, Undone


class Replay:
    """What is known of what the run did.

    Args:
        entries: In the order in which they were written.

    Attributes:
        calls: Of each program, by its prefix.
        settled: Indices of calls, in the order in which their answers were given, by prefix.
        begun: By key.
        done: By key.
        events: News of the engine that was given out, by key.
        closed: Keys of streams that nobody reads on.
        ended: Why the journal goes no further than it does; None if it does.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.calls: defaultdict[str, list[Called]] = defaultdict(list)
        self.settled: defaultdict[str, deque[int]] = defaultdict(deque)
        self.begun: dict[str, Begun] = {}
        self.done: dict[str, Done] = {}
        self.events: defaultdict[str, list[TokenEvent]] = defaultdict(list)
        self.closed: set[str] = set()
        self.ended: str | None = None
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        match entry:
            case Called(prefix):
                self.calls[prefix].append(entry)
            case Settled(prefix, index):
                self.settled[prefix].append(index)
            case Begun(key):
                self.begun[key] = entry
            case Undone(key):
                self.begun.pop(key, None)
            case Done(key):
                self.done[key] = entry
            case Streamed(key, event):
                self.events[key].append(event)
            case Closed(key):
                self.closed.add(key)
            case Ended(reason):
                self.ended = reason

    def num_done(self, kind: str) -> int:
        """How many things of a kind have come to something."""
        return sum(1 for key, one in self.done.items() if f".{kind}." in key and one.value is not None)
