"""Names of programs, and which version is meant."""

from __future__ import annotations

import random

import pytest

from extensions.errors import ArgumentsInvalid
from extensions.programs.versions import Reference, precedence, read_reference


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("a", "a", ""),
        ("best_of_n@1", "best_of_n", "1"),
        ("x9@0.10", "x9", "0.10"),
        ("x@1.2.3-rc.1+build.5", "x", "1.2.3-rc.1+build.5"),
    ],
)
def test_a_reference_is_read(text: str, name: str, version: str) -> None:
    assert read_reference(text, "name") == Reference(name, version)
    assert str(read_reference(text, "name")) == text


@pytest.mark.parametrize("text", ["", "A", "1a", "a@", "a@x", "a@1.", "a@01", "a@1.2.3.4", "a b", "a/b", "a@1\n", "é"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        read_reference(text, "extension.name")
    assert caught.value.param == "extension.name"


VERSIONS = ["0.9.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1"]
VERSIONS += ["1.0.0", "1.2.0", "1.10.0", "2.0.0"]


def test_versions_are_sorted_as_semver_says() -> None:
    shuffled = VERSIONS.copy()
    random.Random(4).shuffle(shuffled)
    assert sorted(shuffled, key=precedence) == VERSIONS


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("", "2.0.0"),
        ("1", "1.10.0"),
        ("1.0", "1.0.0"),
        ("1.2.0", "1.2.0"),
        ("1.0.0-rc.1", "1.0.0-rc.1"),
        ("3", None),
        ("1.1", None),
        ("1.0.0-x", None),
        ("0", "0.9.0"),
    ],
)
def test_the_newest_release_that_is_meant_is_found(asked: str, found: str | None) -> None:
    assert Reference("x", asked).newest(VERSIONS) == found


def test_what_is_not_released_must_be_named_whole() -> None:
    assert Reference("x", "").newest(["2.0.0-rc.1"]) is None
    assert Reference("x", "2.0.0-rc.1").newest(["2.0.0-rc.1"]) == "2.0.0-rc.1"
