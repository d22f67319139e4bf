"""What Wye asks of itself on a CPU beside its peers: a ratio that must be reached, and a speed that is aimed at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtests.contest import Phase, Shape
from loadtests.tables import Cell

Weights = Literal["bfloat16", "int8"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """What is asked of one format of ours against one format of llama.cpp.

    Attributes:
        phase: Decoding or the prompt.
        size: Width when decoding, else tokens of the prompt.
        weights: Our format.
        peer: llama.cpp's format.
        ratio: At least, or None if nothing is asked.
        aim: Tokens per second that we are after.
    """

    phase: Phase
    size: int
    weights: Weights
    peer: str
    ratio: float | None
    aim: float


def _decode(weights: Weights, peer: str, ratios: Sequence[float | None], aims: Sequence[float]) -> list[Ask]:
    return [
        Ask(phase="decode", size=width, weights=weights, peer=peer, ratio=ratio, aim=aim)
        for width, ratio, aim in zip((1, 8, 32), ratios, aims, strict=True)
    ]


def _prefill(weights: Weights, peer: str, ratios: Sequence[float | None], aims: Sequence[float]) -> list[Ask]:
    return [
        Ask(phase="prefill", size=length, weights=weights, peer=peer, ratio=ratio, aim=aim)
        for length, ratio, aim in zip((512, 2048), ratios, aims, strict=True)
    ]


ASKS: Sequence[Ask] = (
    *_decode("bfloat16", "BF16", (1.7, 3.5, 6.0), (95, 600, 1300)),
    *_decode("int8", "Q8_0", (1.2, None, None), (180, 900, 1500)),
    *_decode("int8", "Q4_1", (1.0, 3.0, 5.0), (180, 900, 1500)),
    *_prefill("bfloat16", "Q4_1", (2.0, 3.0), (5000, 4000)),
    *_prefill("int8", "Q4_1", (2.0, 3.0), (5000, 4000)),
)

MOST_TTFT_MS, AIM_TTFT_MS = 60.0, 40.0
"""Over HTTP: one client, a prompt of 128 tokens, gateway and engine on the same two cores."""

MIN_STREAMS_RATIO, AIM_STREAMS = 3.0, 800.0
"""Over HTTP: total decode rate of 32 streams, against llama-server with Q8_0; tokens per second."""

MOST_START_S, AIM_START_S = 10.0, 5.0
"""From the command to the first answer, everything cached."""

MIN_BUSY_RATIO = 0.6
"""Of the quiet speed, beside one process that uses a whole core."""

MIN_CONSTRAINED_RATIO, CONSTRAINED_WIDTH = 0.95, 8
"""Of the tokens per second of free text, while as many sequences are held to a form."""

MOST_TOKEN_US, ASKED_STREAMS = 25.0, 64
"""Processor time of a gateway for each token that it streams to as many clients."""

MOST_COMPILE_MS = 100.0
"""To compile a schema of 200 properties once."""


DECODE_CONTEXT = 128
"""Tokens of each sequence that decoding starts from; of other contexts nothing is asked."""


def ask_for(shape: Shape, weights: str, peer: str) -> Ask | None:
    """The row that a comparison belongs to, or None."""
    if shape.phase == "decode" and shape.num_prompt != DECODE_CONTEXT:
        return None
    size = shape.width if shape.phase == "decode" else shape.num_prompt
    for ask in ASKS:
        if (ask.phase, ask.size, ask.weights, ask.peer) == (shape.phase, size, weights, peer):
            return ask
    return None


def verdict(reached: bool | None) -> Cell:
    """`yes` or `no`; None where nothing was asked or measured."""
    return None if reached is None else "yes" if reached else "no"
