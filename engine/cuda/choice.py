"""Tokens chosen by kernels: a few launches a step, whatever its lanes ask for.

Letters: R lanes, V vocabulary, W words of a bit mask, K alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import FULL, PLAIN, DrawLanes, launch_draw
from engine.cuda.logprobs import gather_logprobs
from engine.cuda.looks import Looks
from engine.sampling.choice import ForcedTokens, SampleLane
from engine.sampling.distribution import Outline, outline
from engine.sampling.logprobs import Logprobs
from engine.sampling.masks import LaneMasks
from engine.sampling.plan import BatchPlan
from engine.sampling.state import SamplerState, upload


class CudaChoice:
    """Chooses what `engine.sampling.torch_choice.TorchChoice` chooses, without sorting and in few launches.

    Args:
        state: On a device that runs Triton's kernels.
        table: Its parameters, if there is a table already; to be shared with captured draws of the same stream.
    """

    changes_logits = True

    def __init__(self, state: SamplerState, table: DrawTable | None = None) -> None:
        self._state = state
        self.table = table or DrawTable(state)
        self._looks: Looks | None = None
        self._everyone = torch.ones(0, dtype=torch.int32, device=state.device)

    def choose(
        self,
        logits: torch.Tensor,
        plan: BatchPlan,
        lanes: Sequence[SampleLane],
        masks: LaneMasks | None,
        forced: ForcedTokens | None = None,
    ) -> torch.Tensor:
        """See `Choice.choose`. Waits for nothing."""
        if forced is not None:
            forced.leave_alone(logits)
        rows, num_outputs = plan.key[1], [lane.num_output for lane in lanes]
        tokens = torch.empty(len(lanes), dtype=torch.int64, device=logits.device)
        self.table.sync(rows, num_outputs)
        form = PLAIN if masks is None and self.table.is_plain(rows) else FULL
        if len(lanes):
            launch_draw(
                logits, self.table, self._upload(lanes, masks), tokens, num_lanes=len(lanes), form=form, pdl=False
            )
        return tokens

    def gather_logprobs(self, logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Logprobs:
        """See `engine.sampling.logprobs.gather_logprobs`."""
        return gather_logprobs(logits, targets, num_top)

    def outline(self, logits: torch.Tensor, places: Sequence[int], num_top: int) -> Outline:
        """See `engine.sampling.distribution.outline`."""
        return outline(logits, places, num_top)

    def look(self, logits: torch.Tensor) -> torch.Tensor:
        """See `engine.sampling.choice.Look`."""
        num_rows = len(logits)
        if len(self._everyone) < num_rows:
            size = max(self.table.scratch.max_lanes, num_rows)
            self._looks = Looks(size, self._state.vocab_size, logits.device)
            self._everyone = torch.ones(size, dtype=torch.int32, device=logits.device)
        assert self._looks is not None
        self._looks.launch(logits.contiguous(), self._everyone, num_rows)
        return self._looks.found[:num_rows]

    def _upload(self, lanes: Sequence[SampleLane], masks: LaneMasks | None) -> DrawLanes:
        """Uploads what the table does not hold, in one copy, and one more of the masks."""
        mask_of = [-1] * len(lanes)
        for number, lane in enumerate(masks.lanes if masks else ()):
            mask_of[lane] = number
        numbers = [lane.row for lane in lanes] + [lane.position for lane in lanes]
        numbers += [lane.num_output for lane in lanes] + mask_of
        device = self._state.device
        columns = upload(numbers, torch.int32, device).view(4, len(lanes))
        if masks is None:
            return DrawLanes(columns[0], columns[1], columns[2])
        words = torch.from_numpy(masks.words).to(device, non_blocking=True)
        return DrawLanes(columns[0], columns[1], columns[2], words, columns[3])
