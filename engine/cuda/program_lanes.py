"""Between the table of a device program and the lanes of a step: one kernel brings what lanes read, one takes it back.

Vectors over the vocabulary and whole histories are moved by torch, one operation each; all else, like a parameter, a
key or the newest tokens of every lane, would take a launch for each number.

Letters: M lanes (padded), R rows of the table, V vocabulary, K newest tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton

from engine.cuda.program_source import kernel
from engine.cuda.program_table import STATES, ProgramTable
from engine.programs.torch_form import BatchValues

_PLACE = [
    "lane = tl.program_id(0)",
    "row = tl.load(rows + lane).to(tl.int64)",
    "position = tl.load(positions + lane).to(tl.int64)",
]


@dataclass(frozen=True, slots=True)
class LaneValues:
    """What lanes read.

    Attributes:
        mine: [M] bool, lanes that run the program; None if all do.
        places: [M] int64, their rows of the table; its spare row for others and for padding.
        values: What the program reads.
    """

    mine: torch.Tensor | None
    places: torch.Tensor
    values: BatchValues


class ProgramLanes:
    """Moves values of one program. Waits for nothing, and looks at nothing but device memory.

    Args:
        table: Where they are kept.
        is_alone: All lanes run the program.
        pdl: Kernels may begin before those in front of them have ended.
    """

    def __init__(self, table: ProgramTable, *, is_alone: bool, pdl: bool = False) -> None:
        self._table = table
        self._is_alone = is_alone
        self._pdl: dict[str, bool] = {"PDL": pdl, "launch_pdl": pdl}
        self._parameters = [name for name, values in table.parameters.items() if values.shape[1] == 1]
        self._states = [name for name, values in table.states.items() if values.shape[1] == 1]
        self._num_seen = min(1, table.num_seen) if table.most_context is not None else table.num_seen

    def read(self, logits: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, context: int) -> LaneValues:
        """What a step's lanes read.

        Args:
            logits: [M, V] float32.
            rows: [M] int32, rows of device state; negative for padding.
            positions: [M] int32, index of the token to draw.
            context: Most tokens that a lane has.
        """
        table, size = self._table, len(rows)
        made = {name: self._empty(size, dtype) for name, dtype in self._brought.items()}
        parameters = {name: self._empty(size, table.parameters[name].dtype) for name in self._parameters}
        states = {name: self._empty(size, table.states[name].dtype) for name in self._states}
        newest = torch.empty((size, self._num_seen), dtype=torch.int64, device=table.device)
        self._reading[size,](
            *(rows, positions, table.used, table.numbers, table.tokens, newest),
            *made.values(),
            *[table.parameters[name] for name in self._parameters],
            *parameters.values(),
            *[table.states[name] for name in self._states],
            *states.values(),
            SPARE=table.spare,
            ROOM=table.room,
            SEEN=self._num_seen,
            BLOCK=triton.next_power_of_2(max(1, self._num_seen)),
            num_warps=1,
            **self._pdl,
        )
        places = made["places"].view(-1)
        for name in table.parameters.keys() - parameters.keys():
            parameters[name] = table.parameters[name].index_select(0, places)
        for name in table.states.keys() - states.keys():
            states[name] = table.states[name].index_select(0, made["before"].view(-1))
        history, lengths, counts = None, None, None
        if table.most_context is not None:
            lengths = made["lengths"].view(-1)
            history = table.all_tokens(places, lengths, context)
            counts = table.counts(history, made["prompts"]) if "counts" in table.reads else None
        values = BatchValues(
            lanes=[logits],
            keys=made["keys"].view(-1) if "keys" in made else None,
            steps=made["steps"].view(-1) if "steps" in made else None,
            history=history,
            lengths=lengths,
            newest=newest if self._num_seen else None,
            counts=counts,
            parameters=parameters,
            state=states,
        )
        return LaneValues(made["mine"].view(-1) if "mine" in made else None, places, values)

    def keep_vectors(self, places: torch.Tensor, positions: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        """Writes state over the vocabulary after tokens of some positions, before it may be written over."""
        vectors = {name: value for name, value in state.items() if name not in self._states}
        after = places * STATES + positions.long() % STATES if vectors else places
        for name, value in vectors.items():
            self._table.states[name].index_copy_(0, after, value.contiguous())

    def keep(
        self,
        rows: torch.Tensor,
        positions: torch.Tensor,
        read: LaneValues,
        state: Mapping[str, torch.Tensor],
        tokens: torch.Tensor,
        last_tokens: torch.Tensor,
        returned: torch.Tensor | None = None,
    ) -> None:
        """Writes all other state after tokens of some positions, and the tokens if the program looks back.

        Args:
            rows: [M] int32, as they were read.
            positions: [M] int32, likewise.
            read: What was read.
            state: What the program made of it, by name.
            tokens: [M] int64, what lanes drew.
            last_tokens: [rows of device state] int64, newest token of each.
            returned: [M] int64, what the program returned, to be written to both; -1 stands in `tokens` for what is no
                token. None where tokens are there.
        """
        table = self._table
        kept = [name for name in self._states if name in state]
        if returned is None and not kept and not table.num_seen:
            return
        self._keeping(tuple(kept), returned is not None)[len(rows),](
            *(rows, positions, read.places, tokens, tokens if returned is None else returned, last_tokens),
            table.tokens,
            *[state[name].contiguous() for name in kept],
            *[table.states[name] for name in kept],
            ROOM=table.room,
            V=table.vocab_size,
            num_warps=1,
            **self._pdl,
        )

    def _empty(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty((size, 1), dtype=dtype, device=self._table.device)

    @cached_property
    def _brought(self) -> dict[str, torch.dtype]:
        """What is worked out for each lane beside what is copied."""
        table = self._table
        names = ["places"]
        if len(self._states) < len(table.states):
            names.append("before")
        if table.most_context is not None:
            names += ["lengths", "prompts"]
        names += [name for name, read in (("keys", "key"), ("steps", "step")) if read in table.reads]
        return dict.fromkeys(names, torch.int64) | ({} if self._is_alone else {"mine": torch.bool})

    @cached_property
    def _reading(self) -> Any:
        worked_out = {
            "places": "place",
            "before": "before",
            "lengths": "position",
            "prompts": "tl.load(numbers + place * 2 + 1)",
            "keys": "key_at(tl.load(numbers + place * 2), position)",
            "steps": "position - tl.load(numbers + place * 2 + 1)",
            "mine": "mine",
        }
        lines = [*_PLACE, "place = tl.where(row < 0, SPARE, row)"]
        if not self._is_alone:
            lines += ["mine = tl.load(used + place)", "place = tl.where(mine, place, SPARE)"]
        lines.append(f"before = place * {STATES} + (position + {STATES - 1}) % {STATES}")
        lines += [f"tl.store(to_{name} + lane, {worked_out[name]})" for name in self._brought]
        if self._num_seen:
            lines += [
                "at = tl.arange(0, BLOCK)",
                "back = position - SEEN + at",
                "found = tl.load(tokens + place * ROOM + back % ROOM, mask=(at < SEEN) & (back >= 0), other=-1)",
                "tl.store(newest + lane * SEEN + at, found, mask=at < SEEN)",
            ]
        parameters, states = range(len(self._parameters)), range(len(self._states))
        lines += [f"tl.store(to_parameter{at} + lane, tl.load(parameter{at} + place))" for at in parameters]
        lines += [f"tl.store(to_state{at} + lane, tl.load(state{at} + before))" for at in states]
        names = ["rows", "positions", "used", "numbers", "tokens", "newest", *[f"to_{name}" for name in self._brought]]
        names += [f"{kind}{at}" for kind in ("parameter", "to_parameter") for at in parameters]
        names += [f"{kind}{at}" for kind in ("state", "to_state") for at in states]
        return kernel("read", names, ["SPARE", "ROOM", "SEEN", "BLOCK"], lines)

    def _keeping(self, kept: tuple[str, ...], takes: bool) -> Any:
        lines = [*_PLACE, "place = tl.load(places + lane)"]
        if takes:
            lines += [
                "token = tl.load(returned + lane)",
                "token = tl.where((token >= 0) & (token < V), token, -1)",
                "tl.store(tokens + lane, token)",
                "tl.store(last_tokens + row, tl.maximum(token, 0), mask=row >= 0)",
            ]
        if self._table.num_seen:
            drawn = "token" if takes else "tl.load(tokens + lane)"
            lines.append(f"tl.store(seen + place * ROOM + position % ROOM, {drawn})")
        lines.append(f"after = place * {STATES} + position % {STATES}")
        lines += [f"tl.store(state{at} + after, tl.load(new{at} + lane))" for at in range(len(kept))]
        names = ["rows", "positions", "places", "tokens", "returned", "last_tokens", "seen"]
        names += [f"{kind}{at}" for kind in ("new", "state") for at in range(len(kept))]
        return kernel("keep", names, ["ROOM", "V"], lines)
