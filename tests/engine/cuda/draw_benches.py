"""Two states filled alike: kernels choose for one, torch for the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import FULL, PLAIN, DrawLanes, launch_draw
from engine.cuda.kernels.draw_config import DrawConfig
from engine.sampling.choice import SampleLane
from engine.sampling.masks import LaneMasks
from engine.sampling.params import SamplingParams
from engine.sampling.plan import make_plan
from engine.sampling.state import SamplerState
from engine.sampling.torch_choice import TorchChoice

V = 150
PROMPT = (1, 2, 3, 2)
EOS = (5,)
SMALL = DrawConfig(block=64, peak=16, capacity=64, gathered=4, tile=64, lane_warps=4)
"""Several chunks, peaks and tiles of a small vocabulary."""
WIDE = DrawConfig(block=256, peak=16, capacity=256, gathered=16, tile=256, lane_warps=4)
"""One chunk; quicker to interpret."""
Floats = npt.NDArray[np.float32]


def params(**values: object) -> SamplingParams:
    return SamplingParams(max_tokens=100, **values)  # type: ignore[arg-type]  # fields of many types


def logits_like(seed: int, num_lanes: int, *, spread: float = 3.0, levels: int | None = None) -> Floats:
    """Random logits; with levels, rounded so that many are equal."""
    values = np.random.default_rng(seed).standard_normal((num_lanes, V)) * spread
    return (values if levels is None else np.round(values * levels) / levels).astype(np.float32)


class DrawBench:
    """Rows in both states, in order; lanes beyond them are padding.

    Attributes:
        reference: Where torch chooses, on the CPU.
        state: Where kernels do.
        seen: Logits of the last draw, as kernels left them.
    """

    def __init__(
        self, batch: Sequence[SamplingParams], device: torch.device, *, seed: int = 0, config: DrawConfig = SMALL
    ) -> None:
        self.reference = SamplerState(num_rows=len(batch), vocab_size=V, device=torch.device("cpu"))
        self.state = SamplerState(num_rows=len(batch), vocab_size=V, device=device)
        self.table = DrawTable(self.state, config=config)
        self.seen: Floats = np.empty((0, V), np.float32)
        self.num_outputs = [2] * len(batch)
        self._batch = batch
        self._torch = TorchChoice(self.reference)
        for row, one in enumerate(batch):
            self.assign(row, one, seed + row)

    def assign(self, row: int, one: SamplingParams, seed: int) -> None:
        for state in (self.reference, self.state):
            state.assign(
                row, params=one, seed=seed, stream=row, prompt_ids=PROMPT, output_ids=[7, 9], eos_token_ids=EOS
            )
        self.num_outputs[row] = 2

    def expected(self, logits: Floats, masks: LaneMasks | None = None) -> list[int]:
        """What torch chooses; counts as a step of the reference alone."""
        plan = make_plan(self.reference, range(len(self._batch)))
        return self._torch.choose(torch.from_numpy(logits.copy()), plan, self.lanes(), masks).tolist()

    def drawn(self, logits: Floats, *, padding: int = 1) -> list[int]:
        """What kernels choose."""
        num_rows = len(self._batch)
        rows, lanes = list(range(num_rows)), num_rows + padding
        device = self.state.device
        on_device = torch.zeros((lanes, V), device=device)
        on_device[:num_rows] = torch.from_numpy(logits)
        out = torch.full((lanes,), -1, device=device)
        self.table.sync(rows, self.num_outputs)
        launch_draw(
            on_device,
            self.table,
            DrawLanes(
                rows=_ints([*rows, *[-1] * padding], device),
                positions=_ints([lane.position for lane in self.lanes()] + [0] * padding, device),
                num_outputs=_ints(self.num_outputs + [0] * padding, device),
            ),
            out,
            num_lanes=lanes,
            form=PLAIN if self.table.is_plain(rows) else FULL,
            pdl=False,
        )
        assert out[num_rows:].tolist() == [-1] * padding
        self.seen = on_device[:num_rows].cpu().numpy()
        return out[:num_rows].tolist()

    def lanes(self) -> list[SampleLane]:
        return [
            SampleLane(row=row, position=len(PROMPT) + count, num_output=count)
            for row, count in enumerate(self.num_outputs)
        ]


def _ints(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
