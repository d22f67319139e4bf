"""Who finds out what rows attend to: a decoder in torch with the weights of the model that serves.

Where torch or the CUDA step serves, its weights are there already; beside the native step they are loaded once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from engine.attention.backend import AttentionStep, LaneLayout
from engine.attention.scores import Attends, Gather, ScoreBackend, Scores
from engine.kv.storage import KVStorage
from engine.models.step import StepInputs

if TYPE_CHECKING:
    from engine.models.decoder import Decoder
    from engine.models.late import LateDecoder


class AttentionReader:
    """Reads attention beside the steps of a model.

    Args:
        decoder: The decoder, where it is there already.
        late: Brings it otherwise.
        gather: Takes K and V out of pages that the model that serves has written; what rows with adapters have before
            them is torch's everywhere.
        is_behind_plain: Of which adapters, by number, that does not hold.
    """

    def __init__(
        self,
        decoder: Decoder | None = None,
        *,
        late: LateDecoder | None = None,
        gather: Gather = KVStorage.gather,
        is_behind_plain: Callable[[int], bool] | None = None,
    ) -> None:
        self._gather = gather
        self._is_behind_plain = is_behind_plain
        self._decoder = decoder
        self._late = late

    def prepare(self) -> Future[None] | None:
        """Has the decoder loaded, if it is not there; None if there is nothing to wait for."""
        return None if self._late is None else self._late.prepare()

    def read(self, inputs: StepInputs, wanted: Sequence[tuple[int, Attends]]) -> dict[int, list[Scores]]:
        """What rows of a step that has been computed attend to. Waits for the device.

        Args:
            inputs: Of the step; K and V of its rows are stored.
            wanted: Lanes of it, rising, and what is wanted of each.

        Returns:
            Scores by lane.
        """
        decoder = self._decoder if self._late is None else self._late.decoder
        assert decoder is not None
        layout, storage = inputs.layout, inputs.storage
        numbers = [inputs.adapters[lane] if inputs.adapters else -1 for lane, _ in wanted]
        backend = ScoreBackend(wanted, [self._gather_of(number) for number in numbers])
        lanes = backend.plan(layout, storage)
        rows = torch.tensor(
            [layout.query_starts[lane] + row for lane, attends in wanted for row in attends.rows],
            device=inputs.token_ids.device,
        )
        part = StepInputs(
            token_ids=inputs.token_ids[rows],
            positions=inputs.positions[rows],
            layout=LaneLayout(
                query_starts=list(accumulate((len(attends.rows) for _, attends in wanted), initial=0)),
                context_lens=[layout.context_lens[lane] for lane, _ in wanted],
                block_tables=[layout.block_tables[lane] for lane, _ in wanted],
                slots=layout.slots[rows],
            ),
            storage=storage,
            readout_rows=rows[:0],
            adapters=[inputs.adapters[lane] for lane, _ in wanted] if inputs.adapters else (),
        )
        step = AttentionStep(backend=backend, plan=lanes, storage=storage, slots=part.layout.slots, writes=False)
        with torch.inference_mode():
            decoder.go_through(part, step)
            return {lane: found.found() for (lane, _), found in zip(wanted, lanes, strict=True)}

    def _gather_of(self, number: int) -> Gather:
        """How the history of rows with an adapter, or -1 for none, is read."""
        is_plain = number < 0 or (self._is_behind_plain is not None and self._is_behind_plain(number))
        return self._gather if is_plain else KVStorage.gather
