"""Generated parts of the docs are what the code says today, and nothing in the docs points nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate import PARTS, generated_parts, regenerate
from docs.pages import ROOT, pages
from docs.tables_project import make_targets

PAGES = pages()


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_generated_parts_are_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert regenerate(text) == text, "run `make docs`"


def test_every_generated_part_stands_on_a_page() -> None:
    used = {name for path in PAGES for name in generated_parts(path.read_text(encoding="utf-8"))}
    assert used == set(PARTS)


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_to_files_of_the_project_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_make_commands_in_the_text_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
    assert named <= set(make_targets())


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_every_page_is_reached_from_the_readme(path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert path.name == "README.md" or f"(docs/{path.name})" in readme
