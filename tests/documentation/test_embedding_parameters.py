"""The tables of docs/embeddings.md are complete and name nothing that does not exist."""

from __future__ import annotations

import re

import pytest

from docs.pages import ROOT
from gateway.schemas.base import WireModel
from gateway.schemas.embeddings import EmbeddingRequest, PooledFields, RerankRequest, ScoreRequest

PAGE = (ROOT / "docs" / "embeddings.md").read_text(encoding="utf-8")
NAME = re.compile(r"`([a-z_0-9]+)`")


def rows(section: str) -> dict[str, str]:
    """Meaning by parameter, of the table in a section."""
    lines = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {name: row[1] for row in cells for name in NAME.findall(row[0])}


@pytest.mark.parametrize(
    ("section", "body"), [("Requests", EmbeddingRequest), ("Rankings", RerankRequest)], ids=["embeddings", "rerank"]
)
def test_every_parameter_has_a_row(section: str, body: type[WireModel]) -> None:
    named = rows(section)
    shared = PooledFields.model_fields.keys()
    assert named.keys() <= body.model_fields.keys() | body.unsupported.keys()
    assert named.keys() >= body.model_fields.keys() - shared
    refused = {name for name, meaning in named.items() if meaning.startswith("Not supported")}
    assert refused == named.keys() & body.unsupported.keys()


def test_shared_parameters_are_told_once_and_scores_are_told_in_words() -> None:
    assert rows("Requests").keys() >= PooledFields.model_fields.keys() - {"model"}
    own = ScoreRequest.model_fields.keys() - PooledFields.model_fields.keys()
    assert all(f"`{name}`" in PAGE for name in own)
