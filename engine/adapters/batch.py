"""Which rows of a step have which adapter, and the part of a step that some lanes make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from engine.adapters.changes import Adapter, AdapterRows
from engine.adapters.shelf import AdapterShelf
from engine.attention.backend import LaneLayout
from engine.models.step import HiddenReadout, StepInputs

Rows = npt.NDArray[np.int64]


def adapter_rows(adapters: Sequence[Adapter] | AdapterShelf, inputs: StepInputs) -> list[AdapterRows]:
    """The rows of each adapter that a step uses; none if it uses none."""
    numbers = inputs.adapters
    used = sorted({number for number in numbers if number >= 0})
    if not used:
        return []
    if len(used) == 1 and min(numbers) >= 0:
        return [AdapterRows(adapters[used[0]], None)]
    starts = inputs.layout.query_starts
    return [
        AdapterRows(
            adapters[number],
            torch.from_numpy(_rows_of([at for at, one in enumerate(numbers) if one == number], starts)).to(
                inputs.token_ids.device
            ),
        )
        for number in used
    ]


@dataclass(frozen=True, slots=True)
class StepPart:
    """Some lanes of a step as a step of their own, where the whole step lies.

    Attributes:
        inputs: Of the part.
        readouts: Places of its readout rows among those of the whole step.
        hidden: Places of its hidden states among those of the whole step.
    """

    inputs: StepInputs
    readouts: torch.Tensor
    hidden: torch.Tensor | None

    def give_hidden(self, inputs: StepInputs) -> None:
        """Copies the hidden states of the part to those of the whole step."""
        if self.hidden is not None and self.inputs.hidden is not None and inputs.hidden is not None:
            inputs.hidden.states[self.hidden] = self.inputs.hidden.states


def take_lanes(inputs: StepInputs, lanes: Sequence[int]) -> StepPart:
    """The part of a step that some of its lanes, at least one, in order, make up; waits for a GPU that it lies on."""
    layout, device = inputs.layout, inputs.token_ids.device
    rows = _rows_of(lanes, layout.query_starts)
    counts = [layout.query_starts[lane + 1] - layout.query_starts[lane] for lane in lanes]
    index = torch.from_numpy(rows).to(device)
    read = inputs.readout_rows.cpu().numpy()
    readouts = np.flatnonzero(np.isin(read, rows))
    hidden = inputs.hidden
    hidden_places = None if hidden is None else np.flatnonzero(np.isin(hidden.rows.cpu().numpy(), rows))
    part = StepInputs(
        token_ids=inputs.token_ids[index],
        positions=inputs.positions[index],
        layout=LaneLayout(
            query_starts=list(accumulate(counts, initial=0)),
            context_lens=[layout.context_lens[lane] for lane in lanes],
            block_tables=[layout.block_tables[lane] for lane in lanes],
            slots=layout.slots[index],
            masks=[layout.masks[lane] for lane in lanes] if layout.masks else (),
        ),
        storage=inputs.storage,
        readout_rows=_places_in(rows, read[readouts]).to(device),
        hidden=_hidden_of(hidden, hidden_places, rows),
        adapters=[inputs.adapters[lane] for lane in lanes] if inputs.adapters else (),
    )
    places = None if hidden_places is None else torch.from_numpy(hidden_places).to(device)
    return StepPart(part, torch.from_numpy(readouts).to(device), places)


def _hidden_of(hidden: HiddenReadout | None, places: Rows | None, rows: Rows) -> HiddenReadout | None:
    if hidden is None or places is None or not len(places):
        return None
    states = hidden.states.new_empty((len(places), hidden.states.shape[1]))
    return HiddenReadout(_places_in(rows, hidden.rows.cpu().numpy()[places]).to(hidden.rows.device), states)


def _places_in(rows: Rows, wanted: Rows) -> torch.Tensor:
    """Where some of the rising `rows` lie among them."""
    return torch.from_numpy(np.searchsorted(rows, wanted).astype(np.int64))


def _rows_of(lanes: Sequence[int], query_starts: Sequence[int]) -> Rows:
    return np.concatenate([np.arange(query_starts[lane], query_starts[lane + 1], dtype=np.int64) for lane in lanes])
