"""A device program behind the logits of a recorded step: what it computes, and the draw that follows.

Its kernels are written for it, and take Triton a second or two to compile: a thread does that, while steps are computed
without a graph.

Letters: M lanes (padded), V vocabulary.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec
import torch

from engine.cuda.kernels.draw import DrawForm
from engine.cuda.lanes import DecodeLanes
from engine.cuda.program_lanes import ProgramLanes
from engine.cuda.program_passes import KernelPasses
from engine.cuda.program_table import ProgramTable
from engine.programs.torch_form import TorchProgram

log = logging.getLogger(__name__)

_compiling = threading.Lock()
"""Held while kernels are compiled: of one program at a time."""

Draw = Callable[[torch.Tensor, DrawForm], None]
"""Draws from logits [M, V], which it may change, in a form: into the step's tokens and those that rows drew last."""


class ProgramEnding:
    """One way of a step to end with a program.

    Args:
        table: What sequences know of it.
        is_alone: All lanes of the step run it; else some draw as they always do.
        form: How those and the program's own scores are drawn from.
        pdl: Kernels may begin before those in front of them have ended.

    Attributes:
        table: The same.
        has_run: It has been part of a recorded step, so its kernels are compiled and work.
    """

    def __init__(self, table: ProgramTable, *, is_alone: bool, form: DrawForm, pdl: bool = False) -> None:
        self.table = table
        self.has_run = False
        self._form = form
        self._pdl = pdl
        self._lanes = ProgramLanes(table, is_alone=is_alone, pdl=pdl)
        graph = table.bound.graph
        kept = [*graph.updates.values(), *graph.probes.values()]
        # What is kept could be the logits themselves; lanes that do not run the program draw from theirs.
        self._may_write = is_alone and all(graph.nodes[at].type.axis is None for at in kept)
        self._programs: dict[int, TorchProgram] = {}
        self._thread: threading.Thread | None = None

    def is_ready(self) -> bool:
        """Whether its kernels are compiled; a thread does it from the first call on. To be launched only then."""
        if self.table.device.type != "cuda":
            return True
        if self._thread is None:
            self._thread = threading.Thread(target=self._compile, name="program-kernels")
            self._thread.start()
        return not self._thread.is_alive()

    def warm_up(self) -> None:
        """Launches everything once, for a lane that is padding: kernels are the same for any number of lanes."""
        table, device = self.table, self.table.device
        tokens = torch.zeros(1, dtype=torch.int64, device=device)
        logits, lanes = torch.zeros((1, table.vocab_size), device=device), DecodeLanes(1, 1, device)
        self.launch(logits, lanes.rows, lanes.draw_positions, 1, tokens, tokens.clone(), lambda *_: None)
        self._programs.clear()

    def _compile(self) -> None:
        device = self.table.device
        try:
            with _compiling, torch.inference_mode(), torch.cuda.device(device):
                stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                with torch.cuda.stream(stream):
                    self.warm_up()
                stream.synchronize()
        except Exception as error:  # recording it says so again, and steps are then computed without a graph
            log.info("kernels of a device program cannot be compiled: %s", error)

    def launch(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        context: int,
        tokens: torch.Tensor,
        last_tokens: torch.Tensor,
        draw: Draw,
        *,
        is_recorded: bool = True,
    ) -> dict[str, torch.Tensor]:
        """Does all that comes behind the logits, with nothing but the device.

        Args:
            logits: [M, V] float32, contiguous; may be changed.
            rows: [M] int32, rows of device state of the step's lanes; negative for padding.
            positions: [M] int32, index of the token to draw.
            context: Most tokens that a lane has.
            tokens: [M] int64, written: -1 where the program returned no token of the vocabulary.
            last_tokens: [rows of device state] int64, written.
            draw: See `Draw`.
            is_recorded: It is part of a recorded step, which keeps the memory that is worked in.

        Returns:
            What the program noted down, by name: [M, any].
        """
        read = self._lanes.read(logits, rows, positions, context)
        room = logits if self._may_write else None
        result = self._program(logits, is_recorded=is_recorded).run(
            msgspec.structs.replace(read.values, room=room), defer=True
        )
        # Before anything is drawn over what may be state.
        self._lanes.keep_vectors(read.places, positions, result.state)
        noted = {name: value.clone() for name, value in result.probes.items()}
        mine, returned = read.mine, None
        if result.tokens is None:
            assert result.scores is not None
            scores = result.scores
            draw(scores.contiguous() if mine is None else torch.where(mine[:, None], scores, logits), self._form)
        elif mine is None:
            returned = result.tokens.contiguous()
        else:
            self._take_tokens(result.tokens, logits, mine, tokens, draw)
        self._lanes.keep(rows, positions, read, result.state, tokens, last_tokens, returned)
        return noted

    def _program(self, logits: torch.Tensor, *, is_recorded: bool) -> TorchProgram:
        """The program with scratch memory of its own, whose address a recorded step keeps."""
        vocab_size = logits.shape[1]
        num_lanes = len(logits) if is_recorded else 0
        if num_lanes not in self._programs:
            graph = self.table.bound.graph  # draws are the recorded step's own, and keys for them are not handed over
            passes = KernelPasses(vocab_size, logits.device, pdl=self._pdl)
            self._programs[num_lanes] = TorchProgram(
                graph, vocab_size, logits.device, native=False, joins_draw=False, passes=passes
            )
        return self._programs[num_lanes]

    def _take_tokens(
        self, returned: torch.Tensor, logits: torch.Tensor, mine: torch.Tensor, tokens: torch.Tensor, draw: Draw
    ) -> None:
        """The program chose tokens [M] itself; lanes that are not its own draw theirs."""
        inside = (returned >= 0) & (returned < logits.shape[1])
        chosen = torch.where(inside, returned, -1)
        only = torch.full_like(logits, -torch.inf).scatter_(1, chosen.clamp_min(0)[:, None], 0.0)
        draw(torch.where(mine[:, None], only, logits), self._form)
        tokens.copy_(torch.where(mine, chosen, tokens))
