"""Recording steps: what a GPU does as one launch afterwards, and when it is time for that."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch

from engine.errors import ModelLoadError

log = logging.getLogger(__name__)

FIRST_USES = 8
"""Steps of a kind that are computed without a graph before one is recorded."""

LAST_USES = 64
"""Steps of a kind before one is recorded even if others wait."""

PROGRAMS_VARIABLE = "WYE_PROGRAM_GRAPHS"
"""Says whether steps with device programs are recorded."""

PROMPTS_VARIABLE = "WYE_PROMPT_GRAPHS"
"""Says whether steps with prompts are recorded."""

_WITHOUT_A_WORD = "1"

Key = TypeVar("Key", bound=Hashable)


def is_wanted(variable: str) -> bool:
    """Whether steps of a kind are to be recorded: what its variable says; without a word they are.

    Raises:
        ModelLoadError: The variable says neither 0 nor 1.
    """
    value = os.environ.get(variable, _WITHOUT_A_WORD)
    if value not in ("0", "1"):
        raise ModelLoadError(f"{variable} is {value!r}; it must be 0 or 1")
    return value == "1"


class Recordings(Generic[Key]):
    """Which kinds of step are recorded.

    A kind's first steps are computed without a graph. It is recorded behind one of them, when no other waits, once it
    has been used a few times: no answer waits for it, and what runs once is not recorded. Where others always wait, one
    of them waits a little longer in the end. Kinds that were used longest ago make room.

    Args:
        record: Records a kind; may raise anything, and is not tried again then.
        forget: Gives a recording up, once the device is done with it.
        fail: Told of kinds that cannot be recorded.
        most: Kinds that are recorded at a time.
        device: Where.
        is_ready: Whether a kind can be recorded quickly by now. Asked again and again once it is due; the first time,
            it begins what there is to be done.
    """

    def __init__(
        self,
        record: Callable[[Key], None],
        forget: Callable[[Key], None],
        fail: Callable[[Key], None],
        *,
        most: int,
        device: torch.device,
        is_ready: Callable[[Key], bool] = lambda _: True,
    ) -> None:
        self._record_one = record
        self._is_ready = is_ready
        self._forget_one = forget
        self._fail = fail
        self._most = most
        self._device = device
        self._uses: OrderedDict[Key, int] = OrderedDict()
        self._due: list[Key] = []
        self._recorded: OrderedDict[Key, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._recorded)

    def use(self, key: Key) -> bool:
        """A step of a kind is about to be computed. True if it is recorded."""
        if key in self._recorded:
            self._recorded.move_to_end(key)
            return True
        uses = self._uses[key] = self._uses.pop(key, 0) + 1
        if uses == FIRST_USES:
            self._due.append(key)
            self._is_ready(key)
        if uses >= LAST_USES and key in self._due and self._is_ready(key):
            self._due.remove(key)
            self._record(key)
        while len(self._uses) > 4 * self._most:
            self._uses.popitem(last=False)
        return key in self._recorded

    def record(self, key: Key) -> None:
        """Records a kind ahead of its use. Raises nothing."""
        if key not in self._recorded:
            self._record(key)

    def rest(self) -> None:
        """No step waits: records one of the kinds that have been used often enough. Raises nothing."""
        for key in reversed(self._due):
            if self._is_ready(key):
                self._due.remove(key)
                self._record(key)
                return

    def drop(self, is_dropped: Callable[[Key], bool]) -> None:
        """Forgets all of some kinds, their uses too."""
        for key in [key for key in self._recorded if is_dropped(key)]:
            self._forget(key)
        for key in [key for key in self._uses if is_dropped(key)]:
            del self._uses[key]
        self._due = [key for key in self._due if not is_dropped(key)]

    def _record(self, key: Key) -> None:
        while len(self._recorded) >= self._most:
            self._forget(next(iter(self._recorded)))
        try:
            self._record_one(key)
        except Exception as error:  # whatever it is: such steps are computed without a graph
            log.warning("a kind of step cannot be recorded, and is computed without a graph: %s", error)
            self._fail(key)
        else:
            self._uses.pop(key, None)
            self._recorded[key] = None

    def _forget(self, key: Key) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        del self._recorded[key]
        self._forget_one(key)


def capture(run: Callable[[], None], device: torch.device, pool: list[Any]) -> Callable[[], None]:
    """Runs once, which compiles what is not compiled, and returns what does the same as one launch; on a CPU `run`.

    Args:
        run: Starts the step, with nothing that waits for the device or goes by what lies on it.
        device: Where.
        pool: Memory that recorded steps share, which never run at the same time; filled by the first.
    """
    if device.type != "cuda":
        return run
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with torch.inference_mode():
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on meanwhile: what they do with the device is theirs.
        with torch.cuda.graph(graph, pool=pool[0] if pool else None, stream=stream, capture_error_mode="thread_local"):
            run()
    if not pool:
        pool.append(graph.pool())
    replay: Callable[[], None] = graph.replay
    return replay
