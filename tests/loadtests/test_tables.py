"""Tables for terminals and for the docs."""

from __future__ import annotations

import pytest

from loadtests.tables import Cell, Table, format_cell


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("label", "label"),
        (7, "7"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (float("inf"), "failed"),
        (float("nan"), "failed"),
    ],
)
def test_cells_keep_three_digits(value: Cell, text: str) -> None:
    assert format_cell(value) == text


def test_text_aligns_numbers_to_the_right() -> None:
    table = Table(title="Speed", headers=["case", "tokens/s"])
    table.add("one", 5)
    table.add("another", 1234.5)
    assert table.text().splitlines() == [
        "Speed",
        "",
        "case     tokens/s",
        "-------  --------",
        "one             5",
        "another     1,234",
    ]


def test_markdown_is_a_table() -> None:
    table = Table(title="Speed", headers=["case", "tokens/s"])
    table.add("one", 5)
    assert table.markdown() == "| case | tokens/s |\n| --- | ---: |\n| one | 5 |"


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 headers"):
        Table(title="Speed", headers=["case", "tokens/s"]).add("one")
