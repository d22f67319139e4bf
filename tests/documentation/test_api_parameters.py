"""The table of parameters in docs/api.md is complete and names nothing that does not exist."""

from __future__ import annotations

import re

import pytest

from docs.pages import ROOT
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Parameters")[1].split("\n## ")[0]
ROWS = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| `")]
NAME = re.compile(r"`([a-z_]+)`")
NAMED = [(name, row[1]) for row in ROWS for name in NAME.findall(row[0])]
ACCEPTED = {
    "chat": ChatRequest.model_fields.keys() | ChatRequest.unsupported.keys(),
    "text": CompletionRequest.model_fields.keys() | CompletionRequest.unsupported.keys(),
}


def test_every_parameter_has_one_row() -> None:
    names = [name for name, _ in NAMED]
    assert sorted(names) == sorted(ACCEPTED["chat"] | ACCEPTED["text"])


def test_every_row_says_where_we_differ() -> None:
    assert [row[0] for row in ROWS if len(row) != 4 or not row[3].strip(" |")] == []


@pytest.mark.parametrize(("name", "where"), NAMED)
def test_the_endpoints_named_accept_the_parameter(name: str, where: str) -> None:
    taking = {kind for kind, fields in ACCEPTED.items() if name in fields}
    assert taking == ({"chat", "text"} if where == "both" else {where})


@pytest.mark.parametrize(("name", "meaning"), [(name, row[2]) for row in ROWS for name in NAME.findall(row[0])])
def test_only_parameters_that_are_refused_are_called_unsupported(name: str, meaning: str) -> None:
    is_accepted = name in {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    assert meaning.startswith("Not supported") == (not is_accepted)
