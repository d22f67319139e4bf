"""Which tokens lanes may draw, as bits."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt


class LaneMasks(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Which tokens some lanes of a batch may draw in this step.

    Attributes:
        lanes: Rows of the logits, at least one and none twice; those not named may draw any.
        words: [len(lanes), ceil(V / 32)] int32 on the host, C-contiguous; bit i of word w allows token 32 * w + i (as
            llguidance and xgrammar lay it out).
    """

    lanes: list[int]
    words: npt.NDArray[np.int32]
