"""Several operations on rows of numbers in one pass, in C++: element by element, with the bits of numpy and torch.

Letters: B rows, V numbers of a row, S single numbers, K keys, N steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.native.library import native_module, native_status

OPERATIONS = (
    *("copy", "add", "sub", "mul", "div", "neg", "abs", "sqrt", "lt", "le", "gt", "ge", "eq", "ne"),
    *("and", "or", "xor", "not", "where", "uniform"),
)
"""By their number: what `wye::PassOp` in `src/passes.h` names, in the same order."""

MOST_REGISTERS = 64
"""Vectors, single numbers and steps of one pass."""

Vector: TypeAlias = "npt.NDArray[np.float32] | npt.NDArray[np.bool_]"


class NativePasses:
    """The compiled pass for one length of rows. All arrays are C-contiguous and on the host.

    Args:
        module: The extension module.
        form: One that this processor can run.
        hashes: [V] int32, `token_hashes` of the places.
        team: Threads to spread rows over, a capsule named "wye.team"; None works in the caller's thread.
    """

    def __init__(
        self, module: ModuleType, form: str, hashes: npt.NDArray[np.int32], team: object | None = None
    ) -> None:
        self._pass = module.run_pass
        self._draw = module.draw_in_pass
        self._mix = module.position_keys
        self._rouse = module.rouse
        self._form = form
        self._hashes = hashes
        self._team = team

    def run(
        self,
        steps: npt.NDArray[np.int32],
        vectors: Sequence[Vector],
        scalars: npt.NDArray[np.float32],
        keys: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        outputs: Sequence[tuple[int, Vector]],
    ) -> None:
        """Computes outputs.

        Args:
            steps: [N, 4], the number of an operation and of its operands: first `vectors`, then single numbers, then
                earlier steps. The operand of `uniform` is the number of a key.
            vectors: [B, V] or [1, V].
            scalars: [B, S].
            keys: [B, K] random keys, or what they are made of.
            numbers: [K], -1 for those that are keys already; for a stream of random numbers the position in it, see
                `engine.sampling.random.position_keys`.
            outputs: Number of a step, and where to [B, V] what it makes is written: as truth values, or as numbers.

        Raises:
            ValueError: Sizes do not fit, or a step names what is not there; nothing has been written.
            MemoryError: Nothing has been written.
        """
        self._pass(*self._arguments(steps, vectors, scalars, keys, numbers, outputs))

    def draw(
        self,
        steps: npt.NDArray[np.int32],
        vectors: Sequence[Vector],
        scalars: npt.NDArray[np.float32],
        keys: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        outputs: Sequence[tuple[int, Vector]],
        scores: tuple[int, int],
    ) -> npt.NDArray[np.int64] | None:
        """Computes outputs, and draws a token from softmax(scores) for each row in the same pass.

        Args:
            steps, vectors, scalars, keys, numbers, outputs: See `run`.
            scores: Number of the step that makes them, and of the key to draw with.

        Returns:
            [B] token ids, of a row of -inf alone 0; None if a score is +inf, so that not every row was drawn. NaN
            counts as -inf.

        Raises:
            ValueError: As `run`.
            MemoryError: As `run`.
        """
        token_ids = np.empty(len(scalars), np.int64)
        arguments = self._arguments(steps, vectors, scalars, keys, numbers, outputs)
        return token_ids if self._draw(*arguments, *scores, token_ids) else None

    def rouse(self) -> None:
        """Has the team's threads awake for what follows in a moment: a thread that sleeps is late for a short pass."""
        self._rouse(self._team)

    def position_keys(
        self, stream_keys: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Keys [B] of positions [B] in streams [B], both halves in one: see `engine.sampling.random.position_keys`.

        Raises:
            ValueError: Sizes do not fit.
        """
        keys = np.empty(len(stream_keys), np.int64)
        self._mix(stream_keys, positions, keys)
        return keys

    def _arguments(
        self,
        steps: npt.NDArray[np.int32],
        vectors: Sequence[Vector],
        scalars: npt.NDArray[np.float32],
        keys: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        outputs: Sequence[tuple[int, Vector]],
    ) -> tuple[object, ...]:
        return (
            *(self._team, self._form, len(self._hashes), len(scalars), steps),
            *(tuple([(vector, vector.dtype == np.bool_) for vector in vectors]), scalars, keys, numbers, self._hashes),
            tuple([(step, array, array.dtype == np.bool_) for step, array in outputs]),
        )


def find_native_passes(hashes: Any, team: object | None = None) -> NativePasses | None:
    """The compiled pass, or None where it cannot run.

    Args:
        hashes: [V] int32, `token_hashes` of the places.
        team: Threads to spread rows over.

    Raises:
        ModelLoadError: `WYE_NATIVE_FORM` names no form of this processor.
    """
    module, status = native_module(), native_status()
    if module is None or status.form is None:
        return None
    return NativePasses(module, status.form, hashes, team)
