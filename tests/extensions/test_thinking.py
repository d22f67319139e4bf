"""Where the thinking at the beginning of a text ends does not depend on how the text is cut into pieces."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from extensions.thinking import ThoughtSplitter


@dataclass(frozen=True)
class Marks:
    """Markers as a model might have them."""

    is_open: bool = False
    start: str = "<t>"
    end: str = "</t>"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("is_open", "text", "thought"),
    [
        (False, "<t>a</t>b</t>", "<t>a</t>"),
        (False, " \n<t>a</t>", " \n<t>a</t>"),
        (False, "<t>a</", "<t>a</"),
        (False, "a<t>b</t>", ""),
        (False, "<", ""),
        (False, "  ", ""),
        (False, "", ""),
        (True, "a</t>b", "a</t>"),
        (True, "a", "a"),
    ],
)
def test_a_text_is_divided_after_its_thinking(size: int, is_open: bool, text: str, thought: str) -> None:
    splitter = ThoughtSplitter(Marks(is_open))
    splits = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)]
    splits.append(splitter.flush())
    assert "".join(split.thought for split in splits) == thought
    assert "".join(split.answer for split in splits) == text[len(thought) :]
    assert not splitter.is_holding
