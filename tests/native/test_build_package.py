"""The package as pip sees it: wheels, editable installations, source distributions, with a compiler and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from docs.pages import ROOT
from engine.native.building.build import MODULE_FILE
from engine.native.building.record import RECORD_FILE, read_record
from tests.native.small_module import load_module, needs_compiler, write_sources

pytest.importorskip("setuptools", minversion="77", reason="pip brings it for a build; here it must be installed")

_INSIDE = "engine/native"


class Checkout:
    """A copy of what a package is built from, with a small module in place of the native step.

    Args:
        root: Directory to make it in.
    """

    def __init__(self, root: Path) -> None:
        self.tree = root / "tree"
        self.cache = root / "cache"
        self.tree.mkdir()
        for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "constraints.txt"):
            shutil.copy(ROOT / name, self.tree)
        for directory in ("engine/native/building", "extensions", "gateway"):
            shutil.copytree(ROOT / directory, self.tree / directory, ignore=shutil.ignore_patterns("__pycache__"))
        for package in ("engine", _INSIDE):
            shutil.copy(ROOT / package / "__init__.py", self.tree / package)
        write_sources(self.tree / _INSIDE / "src")

    def call(self, hook: str, tree: Path | None = None, **environ: str) -> Path:
        """Calls a hook of the build backend as pip does, and returns the file that it makes."""
        output = self.cache.parent / "output"
        shutil.rmtree(output, ignore_errors=True)
        code = f"from setuptools import build_meta; build_meta.{hook}({str(output)!r})"
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tree or self.tree,
            env={**os.environ, "WYE_NATIVE_CACHE": str(self.cache), **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        (made,) = output.iterdir()
        return made


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith(f"{_INSIDE}/")}


def unpack(wheel: Path, directory: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory / _INSIDE


@needs_compiler
def test_a_wheel_has_the_module_for_every_python_and_no_sources(checkout: Checkout, tmp_path: Path) -> None:
    wheel = checkout.call("build_wheel")
    assert wheel.name.endswith("-cp311-abi3-linux_x86_64.whl")
    names = names_in(wheel)
    assert {f"{_INSIDE}/{MODULE_FILE}", f"{_INSIDE}/{RECORD_FILE}", f"{_INSIDE}/__init__.py"} <= names
    assert not [name for name in names if "/src/" in name]
    package = unpack(wheel, tmp_path / "unpacked")
    assert load_module(package / MODULE_FILE).levels()[1] == 512


def test_a_wheel_made_without_a_compiler_fits_every_machine_and_says_why(checkout: Checkout, tmp_path: Path) -> None:
    wheel = checkout.call("build_wheel", PATH="/nowhere", CXX="")
    assert wheel.name.endswith("-py3-none-any.whl")
    package = unpack(wheel, tmp_path / "unpacked")
    assert not (package / MODULE_FILE).exists()
    record = read_record(package)
    assert record is not None
    assert record.reason.startswith("no C++ compiler was found")


@needs_compiler
def test_a_wheel_carries_no_module_that_an_earlier_build_left(checkout: Checkout) -> None:
    checkout.call("build_wheel")
    checkout.call("build_editable")
    assert (checkout.tree / _INSIDE / MODULE_FILE).exists()
    wheel = checkout.call("build_wheel", WYE_NATIVE="0")
    assert f"{_INSIDE}/{MODULE_FILE}" not in names_in(wheel)
    assert f"{_INSIDE}/{RECORD_FILE}" in names_in(wheel)


@needs_compiler
def test_an_editable_installation_finds_the_module_beside_its_sources(checkout: Checkout) -> None:
    checkout.call("build_editable")
    package = checkout.tree / _INSIDE
    assert load_module(package / MODULE_FILE).levels()[1] == 512
    checkout.call("build_editable", WYE_NATIVE="0")
    assert not (package / MODULE_FILE).exists()
    record = read_record(package)
    assert record is not None
    assert record.reason.startswith("WYE_NATIVE=0")


@needs_compiler
def test_a_source_distribution_builds_the_same_module_from_the_cache(checkout: Checkout, tmp_path: Path) -> None:
    first = unpack(checkout.call("build_wheel"), tmp_path / "first") / MODULE_FILE
    with tarfile.open(checkout.call("build_sdist")) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (tree,) = (tmp_path / "sdist").iterdir()
    assert (tree / _INSIDE / "src" / "level.h").exists()
    cached = {path: path.stat().st_ino for path in checkout.cache.iterdir()}
    second = unpack(checkout.call("build_wheel", tree), tmp_path / "second") / MODULE_FILE
    assert second.read_bytes() == first.read_bytes()
    assert {path: path.stat().st_ino for path in checkout.cache.iterdir()} == cached


@pytest.mark.parametrize(("value", "message"), [("1", "error: no C++ compiler"), ("2", "error: WYE_NATIVE is '2'")])
def test_an_installation_that_insists_ends_with_the_reason(checkout: Checkout, value: str, message: str) -> None:
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=checkout.tree,
        env={**os.environ, "WYE_NATIVE": value, "WYE_NATIVE_CACHE": str(checkout.cache), "PATH": "/nowhere", "CXX": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr
