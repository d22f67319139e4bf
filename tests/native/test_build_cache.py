"""The cache of compiled files: found again, made once, never half."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from engine.native.building.cache import MAX_AGE_S, Cache, cache_directory, digest, open_cache


def test_what_was_made_is_found_again(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_bytes(b"object")

    first = Cache(tmp_path).fetch("key", ".o", make)
    assert first.read_bytes() == b"object"
    assert Cache(tmp_path).fetch("key", ".o", make) == first
    assert len(made) == 1
    Cache(tmp_path).fetch("other", ".o", make)
    assert len(made) == 2


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Cache(tmp_path).fetch("key", ".o", fail)
    assert list(tmp_path.iterdir()) == []


def test_files_that_nobody_asked_for_in_a_long_time_are_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for key in ("old", "used", "new"):
        cache.fetch(key, ".o", Path.touch)
    long_ago_s = time.time() - MAX_AGE_S - 60
    for key in ("old", "used"):
        os.utime(tmp_path / f"{key}.o", (long_ago_s, long_ago_s))
    cache.fetch("used", ".o", Path.unlink)
    cache.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.o", "used.o"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WYE_NATIVE_CACHE": "/there", "XDG_CACHE_HOME": "/xdg"}, "/there"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/wye/native"),
        ({"XDG_CACHE_HOME": "relative"}, "{home}/.cache/wye/native"),
        ({}, "{home}/.cache/wye/native"),
    ],
)
def test_the_cache_is_where_the_user_keeps_such_things(environ: dict[str, str], expected: str) -> None:
    assert str(cache_directory(environ)) == expected.format(home=Path.home())


def test_a_directory_that_cannot_be_made_is_replaced_for_this_build(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with open_cache({"WYE_NATIVE_CACHE": str(tmp_path / "file" / "cache")}) as cache:
        made = cache.fetch("key", ".o", Path.touch)
        assert made.exists()
    assert not made.exists()


def test_a_digest_tells_apart_where_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", b"b") == digest(b"a", "b")
