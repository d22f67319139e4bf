"""Where compiled kernels are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cuda.caches import keep_kernels


def test_libraries_keep_kernels_below_wyes_home(tmp_path: Path) -> None:
    environ = {"WYE_HOME": str(tmp_path)}
    keep_kernels(environ=environ)
    assert environ["TRITON_CACHE_DIR"] == str(tmp_path / "kernels" / "triton")
    assert environ["FLASHINFER_WORKSPACE_BASE"] == str(tmp_path / "kernels" / "flashinfer")


def test_a_library_that_was_told_where_keeps_them_there(tmp_path: Path) -> None:
    environ = {"WYE_HOME": str(tmp_path), "TRITON_CACHE_DIR": "/elsewhere"}
    keep_kernels(environ=environ)
    assert environ["TRITON_CACHE_DIR"] == "/elsewhere"
    assert "FLASHINFER_WORKSPACE_BASE" in environ


def test_a_home_that_cannot_be_made_leaves_libraries_to_their_own_ways(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {"WYE_HOME": str(tmp_path / "file")}
    keep_kernels(environ=environ)
    assert list(environ) == ["WYE_HOME"]


def test_a_directory_that_was_named_is_taken_before_wyes_home(tmp_path: Path) -> None:
    environ = {"WYE_HOME": str(tmp_path / "home")}
    keep_kernels(str(tmp_path / "named"), environ)
    assert environ["TRITON_CACHE_DIR"] == str(tmp_path / "named" / "triton")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("named", [{}, {"WYE_HOME": ""}])
def test_without_a_name_it_is_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: dict[str, str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = dict(named)
    keep_kernels(environ=environ)
    assert environ["TRITON_CACHE_DIR"] == str(tmp_path / ".cache" / "wye" / "kernels" / "triton")
