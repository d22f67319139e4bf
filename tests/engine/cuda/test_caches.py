"""Where compiled kernels are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.cuda.caches import keep_kernels, kernels_directory


def test_libraries_keep_kernels_below_wyes_home(tmp_path: Path) -> None:
    environ = {"WYE_HOME": str(tmp_path)}
    keep_kernels(environ)
    assert environ["TRITON_CACHE_DIR"] == str(tmp_path / "kernels" / "triton")
    assert environ["FLASHINFER_WORKSPACE_BASE"] == str(tmp_path / "kernels" / "flashinfer")


def test_a_library_that_was_told_where_keeps_them_there(tmp_path: Path) -> None:
    environ = {"WYE_HOME": str(tmp_path), "TRITON_CACHE_DIR": "/elsewhere"}
    keep_kernels(environ)
    assert environ["TRITON_CACHE_DIR"] == "/elsewhere"
    assert "FLASHINFER_WORKSPACE_BASE" in environ


def test_a_home_that_cannot_be_made_leaves_libraries_to_their_own_ways(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {"WYE_HOME": str(tmp_path / "file")}
    keep_kernels(environ)
    assert list(environ) == ["WYE_HOME"]


@pytest.mark.skipif(os.name != "posix", reason="homes are named as on Unix")
def test_without_a_name_it_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for environ in ({}, {"WYE_HOME": ""}):
        assert kernels_directory(environ) == Path("/home/somebody/.cache/wye/kernels")
