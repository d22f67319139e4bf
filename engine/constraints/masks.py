"""Masks on their way to a step that has already begun: it needs them only once its logits are there.

host    schedule 2 | apply 1, masks of 2 | schedule 3 | apply 2, masks of 3 |
device  [ step 1 ] [ forward 2 ... sample 2 ] [ forward 3 ... sample 3 ]
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue

import msgspec
import numpy as np
import numpy.typing as npt

from engine.constraints.constraint import TokenMask
from engine.errors import EngineError

Masks = Mapping[tuple[int, int], TokenMask]
"""By row of device state and depth: 0 for the draw that is certain, more for those behind guessed tokens.

Rows without one at depth 0 are free.
"""


class StepMasks(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One step's masks, laid out for the device.

    Attributes:
        keys: Row of device state and depth of each.
        words: [len(keys), ceil(V / 32)] int32, C-contiguous.
    """

    keys: list[tuple[int, int]]
    words: npt.NDArray[np.int32]

    def at(self, depth: int) -> dict[int, int]:
        """Places of the masks of one depth, by row of device state."""
        return {row: place for place, (row, at) in enumerate(self.keys) if at == depth}


class MaskHandover:
    """Passes one step's masks from the host to the device's thread, once."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[StepMasks | None] = SimpleQueue()

    def give(self, masks: Masks) -> None:
        """The masks are these; lays them out here, because the device's thread has no time for it."""
        words = np.stack(list(masks.values())) if masks else np.empty((0, 0), np.int32)
        self._queue.put(StepMasks(list(masks), words))

    def give_up(self) -> None:
        """There will be none: the step must fail rather than draw freely."""
        self._queue.put(None)

    def take(self) -> StepMasks:
        """Waits for the masks; to be called once.

        Raises:
            EngineError: There are none.
        """
        masks = self._queue.get()
        if masks is None:
            raise EngineError("the masks of a step could not be computed")
        return masks
