"""A device without a model: pages hold the tokens themselves, and the next token is a function of what is read there.

It runs batches as the real runner does (copies, writes, then reads through the block table) and refuses a lane whose
pages do not hold exactly its sequence's tokens. A wrong page, a missed copy or a reused page therefore fails loudly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from collections.abc import Sequence as ListOf

from engine.forward.lockstep import LaneGroup
from engine.kv.tiers import Transfer, split
from engine.request import TokenLogprob
from engine.scheduling.batch import Batch, Lane, LaneResult
from engine.sequence import Sequence

VOCAB = 50


def next_token(history: ListOf[int], seed: int, stream: int, banned: Container[int] = ()) -> int:
    """The token this "model" draws after a history."""
    digest = hashlib.blake2b(repr((list(history), seed, stream)).encode(), digest_size=4).digest()
    token = int.from_bytes(digest, "little") % VOCAB
    while token in banned:
        token = (token + 1) % VOCAB
    return token


def continuation(prompt: ListOf[int], *, seed: int, stream: int, max_tokens: int, stop: frozenset[int]) -> list[int]:
    """What a sequence yields when nothing disturbs it."""
    history = list(prompt)
    while len(history) < len(prompt) + max_tokens:
        history.append(next_token(history, seed, stream))
        if history[-1] in stop:
            break
    return history[len(prompt) :]


def _columns(lane: Lane) -> list[int]:
    """Positions of the slots that the lane's context has."""
    context = lane.sequence.context
    gaps = () if context is None else tuple(context.gaps)
    return [position for position in range(lane.stop) if not any(gap.start <= position < gap.stop for gap in gaps)]


class SimulatedDevice:
    """Slots of token ids instead of K and V."""

    def __init__(self, num_pages: int, page_size: int, num_rows: int, host_pages: int = 0) -> None:
        self._host: list[list[int | None]] = [[]] * host_pages
        self._size = page_size
        self._slots: list[int | None] = [None] * (num_pages * page_size)
        self._last: list[int | None] = [None] * num_rows
        self._rows: dict[int, tuple[int, int, frozenset[int]]] = {}
        self._known: dict[Lane, list[int]] = {}
        self._columns: dict[Lane, list[int]] = {}
        self._together: dict[LaneGroup, dict[Sequence, list[int]]] = {}

    def stage(self, batch: Batch) -> None:
        """Reads what the step needs of the host's objects, which go on changing."""
        self._known |= {lane: lane.sequence.token_ids[: lane.stop] for lane in batch.lanes}
        self._columns |= {lane: _columns(lane) for lane in batch.lanes}

    def run(self, batch: Batch, void: Container[Sequence] = ()) -> list[LaneResult]:
        """Executes one step; lanes of `void` sequences, whose step before failed, compute nothing."""
        for row in batch.released_rows:
            self._rows.pop(row, None)
        for taken in batch.assigned_rows:
            banned = frozenset(word[0] for word in taken.params.bad_words)
            self._rows[taken.row] = (taken.seed, taken.stream, banned)
        saves, restores = split(batch.transfers)
        for transfer in saves:
            self._transfer(transfer)
        destinations = [destination for _, destination in batch.copies]
        assert len(set(destinations)) == len(destinations)
        for source, destination in batch.copies:
            self._page(destination)[:] = self._page(source)
            for offset, token in enumerate(self._page(source)):
                self._slots[destination * self._size + offset] = token
        for transfer in restores:
            self._transfer(transfer)
        written: set[int] = set()
        for lane in batch.lanes:
            if lane.sequence not in void:
                self._write(lane, written)
        self._together.clear()
        results = [LaneResult() if lane.sequence in void else self._read(lane) for lane in batch.lanes]
        for group, seen in self._together.items():
            assert list(seen) == list(group.members), "lanes that draw together are not all in the step"
            first = batch.lanes[[lane.sequence for lane in batch.lanes].index(group.first)]
            token = next_token([one for tokens in seen.values() for one in tokens], *self._rows[first.row])
            for at, lane in enumerate(batch.lanes):
                if lane.sequence in seen:
                    self._last[lane.row], results[at] = token, LaneResult(token)
        for lane in batch.lanes:
            del self._known[lane], self._columns[lane]
        return results

    def _transfer(self, transfer: Transfer) -> None:
        for device, host in zip(transfer.device_pages, transfer.host_pages, strict=True):
            if transfer.saved is None:
                self._host[host] = self._page(device)
            else:
                assert transfer.saved.is_done, "pages are restored that were never saved"
                self._slots[device * self._size : (device + 1) * self._size] = self._host[host]
        transfer.is_done = True

    def _page(self, page: int) -> list[int | None]:
        return self._slots[page * self._size : (page + 1) * self._size]

    def _slot(self, lane: Lane, position: int) -> int:
        cell = position - lane.offset
        return lane.pages[cell // self._size] * self._size + cell % self._size

    def _write(self, lane: Lane, written: set[int]) -> None:
        for position in range(lane.start, lane.stop):
            slot = self._slot(lane, position)
            assert slot not in written, "two lanes write one slot"
            written.add(slot)
            self._slots[slot] = self._last[lane.row] if lane.feeds_back else self._known[lane][position]

    def _read(self, lane: Lane) -> LaneResult:
        columns = self._columns[lane]
        assert len(columns) == lane.stop - lane.offset
        cells = [self._slots[self._slot(lane, cell + lane.offset)] for cell in range(len(columns))]
        known = [self._known[lane][column] for column in columns if column < len(self._known[lane])]
        assert cells[: len(known)] == known, "a lane reads what is not its own history"
        seen = [True] * len(cells) if lane.mask is None else lane.mask[-1].tolist()
        tokens = [token for token, is_seen in zip(cells, seen, strict=True) if is_seen and token is not None]
        assert len(tokens) == sum(seen)
        prompt = []
        if lane.reads_prompt:
            stop = min(lane.stop, lane.sequence.num_prompt - 1)
            start = max(lane.start, lane.sequence.first_scored)
            prompt = [TokenLogprob(float(-position), [], [], 1) for position in range(start, stop)]
        if not lane.samples:
            return LaneResult(prompt_logprobs=prompt)
        if lane.sequence.group is not None:
            self._together.setdefault(lane.sequence.group, {})[lane.sequence] = tokens
            return LaneResult(0)
        token = next_token(tokens, *self._rows[lane.row])
        self._last[lane.row] = token
        return LaneResult(token, None, prompt)
