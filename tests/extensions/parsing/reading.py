"""Reads texts whole and in pieces, and compares."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extensions.parsing.answers import AnswerPlan
from extensions.parsing.formats import FORMATS, FormatName
from extensions.parsing.parts import CallArguments, CallStart, Content, Part, Reasoning, Skipped
from extensions.parsing.reasoning import Thinking

NAMES = ("get_weather", "set_light", "get_time")
THINK = Thinking(start="<think>", end="</think>")


@dataclass(frozen=True)
class Read:
    """What a client sees of one text.

    Attributes:
        content: Joined.
        calls: Name and joined arguments of each.
        thought: Joined.
    """

    content: str
    calls: tuple[tuple[str, str], ...] = ()
    thought: str = ""


def plan(name: FormatName = "generic", *, thinking: Thinking | None = THINK, **fields: bool) -> AnswerPlan:
    """A plan with all of `NAMES`."""
    return AnswerPlan(thinking=thinking, tool_format=FORMATS[name], names=NAMES, **fields)


def parts_of(plan: AnswerPlan, pieces: Sequence[str], *, is_cut: bool = False) -> list[Part]:
    """All parts of a text that comes in pieces; checks that they are the text, and that calls are in order."""
    reader = plan.reader()
    parts = [part for piece in pieces for part in reader.feed(piece)] + reader.end(is_cut=is_cut)
    assert "".join(part.text for part in parts if isinstance(part, Content | Reasoning | Skipped)) == "".join(pieces)
    assert [part.index for part in parts if isinstance(part, CallStart)] == list(range(reader.num_calls))
    started = -1
    for part in parts:
        if isinstance(part, CallStart):
            started = part.index
        if isinstance(part, CallArguments):
            assert part.index == started
    return parts


def summary(parts: Sequence[Part]) -> Read:
    """What a client makes of the parts."""
    calls = [
        (start.name, "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == number))
        for number, start in enumerate(part for part in parts if isinstance(part, CallStart))
    ]
    return Read(
        content="".join(part.text for part in parts if isinstance(part, Content)),
        calls=tuple(calls),
        thought="".join(part.text for part in parts if isinstance(part, Reasoning)),
    )


def splits(text: str, seed: int, num_random: int = 12) -> Iterator[list[str]]:
    """Whole, character by character, and at random places."""
    yield [text]
    yield list(text)
    generator = random.Random(seed)
    for _ in range(num_random):
        places = sorted(generator.sample(range(len(text) + 1), min(len(text), generator.randint(1, 9))))
        yield [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def read(plan: AnswerPlan, text: str, *, is_cut: bool = False) -> Read:
    """What a client sees of a text; the same for all of its splits."""
    seen = {summary(parts_of(plan, pieces, is_cut=is_cut)) for pieces in splits(text, len(text))}
    assert len(seen) == 1, seen
    return seen.pop()
