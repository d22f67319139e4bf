"""llama.cpp is built once out of its source package, repaired, and put in place only as a whole."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from loadtests import llama_build
from loadtests.llama_build import KEEP_STORES, LOAD_TILES, PROGRAMS, TILES, BuildFailed, ensure_llama, repair, unpack
from tests.loadtests.fake_peers import write_script

_NINJA = """
import pathlib
built = pathlib.Path(value("-C")) / "bin"
if (built.parent.parent / "fail").exists():
    sys.exit("compiler error")
built.mkdir(parents=True, exist_ok=True)
for program in arguments[4:]:
    (built / program).write_text("program")
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds nothing but stand-ins for a compiler and its friends."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name, body in {"cmake": "", "ninja": _NINJA, "cc": "", "c++": ""}.items():
        write_script(directory / name, body)
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source package that `pip download` brings, and nothing else."""
    tree = tmp_path / "package" / "llama_cpp_python-1" / "vendor" / "llama.cpp"
    (tree / TILES).parent.mkdir(parents=True)
    (tree / TILES).write_text(f"tc.rows[0] = 8;\n{LOAD_TILES}", encoding="utf-8")
    archive = tmp_path / "llama_cpp_python-1.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tree.parents[1], "llama_cpp_python-1")
    pip = write_script(
        tmp_path / "pip",
        f"import shutil; shutil.copy({str(archive)!r}, value('-d')); assert '--require-hashes' in arguments",
    )
    monkeypatch.setattr(llama_build, "sys", _Interpreter(str(pip)))
    return archive


class _Interpreter:
    def __init__(self, executable: str) -> None:
        self.executable = executable


def test_programs_are_built_and_only_they_are_kept(tools: Path, package: Path, tmp_path: Path) -> None:
    peers = tmp_path / "peers"
    programs = ensure_llama(peers)
    assert sorted(file.name for file in programs.iterdir()) == sorted([*PROGRAMS, "build.json"])
    assert json.loads((programs / "build.json").read_text(encoding="utf-8"))["repaired"] == str(TILES)
    assert not (peers / "building" / programs.name).exists()


def test_what_is_there_is_not_built_again(tools: Path, package: Path, tmp_path: Path) -> None:
    programs = ensure_llama(tmp_path / "peers")
    for tool in tools.iterdir():
        tool.unlink()
    assert ensure_llama(tmp_path / "peers") == programs


def test_everything_that_is_missing_is_named(tools: Path, tmp_path: Path) -> None:
    (tools / "ninja").unlink()
    (tools / "c++").unlink()
    with pytest.raises(BuildFailed, match=r"needs ninja, a C\+\+ compiler on the PATH"):
        ensure_llama(tmp_path / "peers")
    assert not (tmp_path / "peers").exists()


def test_a_build_that_failed_resumes_with_the_same_source(tools: Path, package: Path, tmp_path: Path) -> None:
    work = tmp_path / "peers" / "building" / f"llama.cpp-{llama_build.VERSION}"
    work.mkdir(parents=True)
    (work / "fail").touch()
    with pytest.raises(BuildFailed, match=r"ninja ended with exit code 1(.|\n)*compiler error"):
        ensure_llama(tmp_path / "peers")
    assert not (tmp_path / "peers" / work.name).exists()
    package.unlink()
    (work / "fail").unlink()
    assert (ensure_llama(tmp_path / "peers") / "llama-server").is_file()


def test_the_tile_configuration_is_kept_from_the_compiler(package: Path, tmp_path: Path) -> None:
    unpack(package, tmp_path / "source")
    text = (tmp_path / "source" / TILES).read_text(encoding="utf-8")
    assert text == f"tc.rows[0] = 8;\n{KEEP_STORES}{LOAD_TILES}"
    assert not (tmp_path / "unpacking").exists()


def test_a_source_that_is_otherwise_than_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / TILES).parent.mkdir(parents=True)
    (tmp_path / TILES).write_text("nothing of the kind", encoding="utf-8")
    with pytest.raises(BuildFailed, match="as it is known to"):
        repair(tmp_path)


def test_a_package_without_llama_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "other.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(__file__, "other-1/setup.py")
    with pytest.raises(BuildFailed, match=r"other.tar.gz has no vendor/llama.cpp"):
        unpack(archive, tmp_path / "source")


def test_a_download_that_brings_nothing_is_refused(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_build, "sys", _Interpreter(str(write_script(tmp_path / "pip", ""))))
    with pytest.raises(BuildFailed, match="pip left 0 source packages"):
        ensure_llama(tmp_path / "peers")
