"""A device program behind the logits of a recorded step: what it computes, and the draw that follows.

Letters: M lanes (padded), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.cuda.kernels.draw import DrawForm
from engine.cuda.lanes import DecodeLanes
from engine.cuda.program_table import ProgramTable
from engine.programs.torch_form import BatchResult, TorchProgram

Draw = Callable[[torch.Tensor, DrawForm], None]
"""Draws from logits [M, V], which it may change, in a form: into the step's tokens and those that rows drew last."""


class ProgramEnding:
    """One way of a step to end with a program.

    Args:
        table: What sequences know of it.
        is_alone: All lanes of the step run it; else some draw as they always do.
        form: How those and the program's own scores are drawn from.

    Attributes:
        table: The same.
    """

    def __init__(self, table: ProgramTable, *, is_alone: bool, form: DrawForm) -> None:
        self.table = table
        self._is_alone = is_alone
        self._form = form
        self._programs: dict[int, TorchProgram] = {}

    def launch(
        self,
        logits: torch.Tensor,
        lanes: DecodeLanes,
        context: int,
        tokens: torch.Tensor,
        last_tokens: torch.Tensor,
        draw: Draw,
    ) -> dict[str, torch.Tensor]:
        """Does all that comes behind the logits, with nothing but the device.

        Args:
            logits: [M, V] float32, contiguous; may be changed.
            lanes: Of the step.
            context: Most tokens that a lane has.
            tokens: [M] int64, written: -1 where the program returned no token of the vocabulary.
            last_tokens: [rows of device state] int64, written.
            draw: See `Draw`.

        Returns:
            What the program noted down, by name: [M, any].
        """
        table, positions = self.table, lanes.draw_positions.long()
        mine, places = None, table.places(lanes.rows)
        if not self._is_alone:
            mine, places = table.places_among(lanes.rows)
        result = self._program(logits).run(table.values(logits, places, positions, context), defer=True)
        table.keep(places, positions, result.state)  # before anything is drawn over logits that may be state
        noted = {name: value.clone() for name, value in result.probes.items()}
        if result.tokens is None:
            assert result.scores is not None
            scores = result.scores
            draw(scores.contiguous() if mine is None else torch.where(mine[:, None], scores, logits), self._form)
        else:
            self._take_tokens(result, logits, mine, places, tokens, last_tokens, draw)
        table.append(places, positions, tokens)
        return noted

    def _program(self, logits: torch.Tensor) -> TorchProgram:
        """The program with scratch memory of its own, whose address a recorded step keeps."""
        num_lanes, vocab_size = logits.shape
        if num_lanes not in self._programs:
            graph = self.table.bound.graph  # draws are the recorded step's own, and keys for them are not handed over
            self._programs[num_lanes] = TorchProgram(graph, vocab_size, logits.device, joins_draw=False)
        return self._programs[num_lanes]

    def _take_tokens(
        self,
        result: BatchResult,
        logits: torch.Tensor,
        mine: torch.Tensor | None,
        places: torch.Tensor,
        tokens: torch.Tensor,
        last_tokens: torch.Tensor,
        draw: Draw,
    ) -> None:
        """The program chose tokens itself; lanes that are not its own draw theirs."""
        assert result.tokens is not None
        inside = (result.tokens >= 0) & (result.tokens < logits.shape[1])
        chosen = torch.where(inside, result.tokens, -1)
        written = chosen.clamp_min(0)
        if mine is None:
            tokens.copy_(chosen)
            rows = torch.cat((last_tokens, last_tokens[:1]))  # one more, for lanes that are padding
            last_tokens.copy_(rows.index_copy_(0, places, written)[:-1])
            return
        only = torch.full_like(logits, -torch.inf).scatter_(1, written[:, None], 0.0)
        draw(torch.where(mine[:, None], only, logits), self._form)
        tokens.copy_(torch.where(mine, chosen, tokens))
