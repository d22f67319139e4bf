"""What the one function of a program is for: its name says so, and with it what it may read and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.programs.types import BOOL, HISTORY, INT, KEY, VOCAB, Kind, Type

SAMPLE, PROPOSE, VERIFY, MASK, ADAPTER = "sample", "propose", "verify", "mask", "adapter"
KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Purpose:
    """One name that the function may have.

    Attributes:
        meaning: What it does, for messages: "draws tokens".
        use: Where it belongs, for messages.
        returns: What it returns, for messages.
        inputs: Names that it gets if its parameters have them, with their types; None where others say which. `lanes`
            is no value of itself.
        results: Types that it may return; guesses and adapters have rules of their own.
        knows_vocab: There is a vocabulary.
        has_state: Something is carried from one time to the next.
        takes_notes: The host may read what it notes down.
    """

    meaning: str
    use: str
    returns: str
    inputs: Mapping[str, Type | None]
    results: tuple[Type, ...] = (INT,)
    knows_vocab: bool = True
    has_state: bool = True
    takes_notes: bool = True


_OF_TOKENS = Type(Kind.INT, HISTORY)
_KNOWN_BEFORE: Mapping[str, Type | None] = {
    "key": KEY,
    "prev": INT,
    "step": INT,
    "history": _OF_TOKENS,
    "places": _OF_TOKENS,
    "counts": Type(Kind.INT, VOCAB),
}
"""What is known before a step."""

PURPOSES: Mapping[str, Purpose] = MappingProxyType(
    {
        SAMPLE: Purpose(
            meaning="draws tokens",
            use="for `sampler`, or for a pass",
            returns="a token",
            inputs={"logits": Type(Kind.FLOAT, VOCAB), "lanes": None, **_KNOWN_BEFORE},
        ),
        PROPOSE: Purpose(
            meaning="guesses tokens",
            use="for `drafter`",
            returns="the tokens that it guesses",
            inputs=_KNOWN_BEFORE,
        ),
        VERIFY: Purpose(
            meaning="judges guesses",
            use="for `verify`, or for a pass over a guess",
            returns="the token that comes",
            inputs={
                "logits": Type(Kind.FLOAT, VOCAB),
                "p": Type(Kind.FLOAT, VOCAB),
                "q": Type(Kind.FLOAT, VOCAB),
                "draft": INT,
                **_KNOWN_BEFORE,
            },
            takes_notes=False,
        ),
        MASK: Purpose(
            meaning="says what rows see",
            use="for the `mask` of a pass",
            returns="for each slot whether it is seen",
            inputs={
                "slot": _OF_TOKENS,
                "history": _OF_TOKENS,
                "positions": _OF_TOKENS,
                "row": INT,
                "own": INT,
                "start": INT,
                "position": INT,
                "lane": INT,
            },
            results=(Type(Kind.BOOL, HISTORY), BOOL),
            knows_vocab=False,
            has_state=False,
            takes_notes=False,
        ),
        KEEP: Purpose(
            meaning="says what stays",
            use="for `on_attention`",
            returns="for each slot whether it stays",
            inputs={
                "attention": Type(Kind.FLOAT, HISTORY),
                "order": _OF_TOKENS,
                "slot": _OF_TOKENS,
                "history": _OF_TOKENS,
                "length": INT,
                "layer": INT,
            },
            results=(Type(Kind.BOOL, HISTORY),),
            knows_vocab=False,
            has_state=False,
            takes_notes=False,
        ),
        ADAPTER: Purpose(
            meaning="changes what comes out of a site",
            use="for the `adapter` of a pass",
            returns="what comes out",
            inputs={"x": None, "y": None},
            results=(),
            knows_vocab=False,
            has_state=False,
            takes_notes=False,
        ),
    }
)
"""By name. Axis T of a mask rule is one value for each slot of the lane: its history, then its rows."""
