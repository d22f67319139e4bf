"""Runs known tokens through a step model, and compares what two models say after each of them.

Letters: T tokens of a window, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from engine.attention.backend import LaneLayout
from engine.kv.storage import KVStorage
from engine.models.config import ModelConfig
from engine.models.step import StepInputs, StepModel

PAGE_SIZE = 16


def windows(token_ids: Sequence[int], size: int) -> Iterator[list[int]]:
    """Cuts a text into windows that are read independently; a last one of a single token is left out."""
    for start in range(0, len(token_ids), size):
        window = list(token_ids[start : start + size])
        if len(window) > 1:
            yield window


def make_storage(
    config: ModelConfig, num_tokens: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> KVStorage:
    """K and V for one window."""
    return KVStorage(
        num_layers=config.num_layers,
        num_pages=-(-num_tokens // PAGE_SIZE),
        page_size=PAGE_SIZE,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=torch.device(device),
    )


def read_window(model: StepModel, storage: KVStorage, token_ids: Sequence[int], chunk: int) -> torch.Tensor:
    """Prefills a window in chunks, every row read out.

    Returns:
        [T, V] float32 on the CPU: at row i the logits of what follows tokens 0..i.
    """
    parts = []
    device = storage.device
    for start in range(0, len(token_ids), chunk):
        stop = min(start + chunk, len(token_ids))
        positions = torch.arange(start, stop, device=device)
        layout = LaneLayout(
            query_starts=[0, stop - start],
            context_lens=[stop],
            block_tables=[list(range(-(-stop // PAGE_SIZE)))],
            slots=positions.clone(),
        )
        step = StepInputs(
            token_ids=torch.tensor(token_ids[start:stop], device=device),
            positions=positions,
            layout=layout,
            storage=storage,
            readout_rows=torch.arange(stop - start, device=device),
        )
        # A step model may hand out its own buffer, valid until the next step.
        parts.append(model.forward(step).to("cpu", copy=True))
    return torch.cat(parts)


@dataclass(kw_only=True)
class Comparison:
    """How far one model's logits are from another's over many positions.

    Attributes:
        num_positions: Positions compared.
        num_targets: Of them, those whose next token is known.
        loss: Sum over the targets of the next token's negative log-probability, nats.
        divergence: Sum of the Kullback-Leibler divergence from the reference, nats.
        error: Sum over positions of the mean |logit error|.
        greatest_error: Greatest |logit error|.
        margins: Where the greedy tokens differ: by how much the reference prefers its own to the next best.
        losses: Where they differ: by how much the reference prefers its own to the model's.
    """

    num_positions: int = 0
    num_targets: int = 0
    loss: float = 0.0
    divergence: float = 0.0
    error: float = 0.0
    greatest_error: float = 0.0
    margins: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], logits: torch.Tensor, reference: torch.Tensor) -> None:
        """Adds a window.

        Args:
            token_ids: T of them.
            logits: [T, V] float32 of the model.
            reference: [T, V] float32.
        """
        difference = (logits - reference).abs_()
        self.error += difference.mean(-1).sum().item()
        self.greatest_error = max(self.greatest_error, difference.max().item())
        log_probs = logits.log_softmax(-1)
        targets = torch.tensor(token_ids[1:])
        self.loss -= log_probs[:-1].gather(1, targets[:, None]).sum().item()
        expected = reference.log_softmax(-1)
        self.divergence += functional.kl_div(log_probs, expected, reduction="sum", log_target=True).item()
        self.num_positions += len(logits)
        self.num_targets += len(targets)
        chosen = logits.argmax(-1)
        best = reference.topk(2, dim=-1)
        differs = chosen != best.indices[:, 0]
        self.margins += (best.values[:, 0] - best.values[:, 1])[differs].tolist()
        self.losses += (best.values[:, 0] - reference.gather(1, chosen[:, None])[:, 0])[differs].tolist()

    def merge(self, other: Comparison) -> None:
        """Adds what another comparison found."""
        self.num_positions += other.num_positions
        self.num_targets += other.num_targets
        self.loss += other.loss
        self.divergence += other.divergence
        self.error += other.error
        self.greatest_error = max(self.greatest_error, other.greatest_error)
        self.margins += other.margins
        self.losses += other.losses

    @property
    def perplexity(self) -> float:
        """exp of the mean loss."""
        return math.exp(self.loss / self.num_targets)

    @property
    def mean_error(self) -> float:
        """Mean |logit error|."""
        return self.error / self.num_positions

    @property
    def mean_divergence(self) -> float:
        """Mean Kullback-Leibler divergence from the reference, nats."""
        return self.divergence / self.num_positions

    @property
    def num_agreeing(self) -> int:
        """Positions where both models' likeliest tokens are the same."""
        return self.num_positions - len(self.margins)

    def num_near_ties(self, margin: float) -> int:
        """Disagreements where the reference prefers its own token to the next best by less than this."""
        return sum(each < margin for each in self.margins)
