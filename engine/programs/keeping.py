"""Rules that say which slots of a history stay, by how much they are attended to.

Letters: T slots.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.programs.binding import BoundProgram
from engine.programs.reference import result
from engine.programs.values import Array, StepValues

Bits = npt.NDArray[np.bool_]


def kept_slots(
    rule: BoundProgram, attention: npt.NDArray[np.float32], history: npt.NDArray[np.int64], layer: int = -1
) -> Bits:
    """Which slots stay: [T] bool.

    Args:
        rule: A program whose function is `keep`.
        attention: [T], how much of it each slot has.
        history: [T], the tokens.
        layer: Whose attention that is; -1 for what is made of several.
    """
    order = np.empty(len(attention), dtype=np.int64)
    order[np.argsort(-attention, kind="stable")] = np.arange(len(attention))
    others: dict[str, Array] = {
        "attention": attention,
        "order": order,
        "slot": np.arange(len(attention)),
        "length": np.asarray(len(attention)),
        "layer": np.asarray(layer),
    }
    stays = result(rule.graph, StepValues(vocab_size=0, history=history, others=others), rule.parameters)
    return stays.astype(np.bool_)
