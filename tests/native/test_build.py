"""Building an extension module: cached, optional, and never half."""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path

import pytest

from engine.native.building import build as building
from engine.native.building.build import MODULE_FILE, build
from engine.native.building.compiler import BuildFailure, Compiler
from engine.native.building.record import BuildRecord, read_record
from tests.native.small_module import WatchedCompiler, load_module, needs_compiler, write_sources


class Yard:
    """A source directory, a target and a cache of one's own."""

    def __init__(self, root: Path) -> None:
        self.sources = write_sources(root / "src")
        self.target = root / "target"
        self.environ = {"PATH": os.environ["PATH"], "WYE_NATIVE_CACHE": str(root / "cache")}

    @property
    def module(self) -> Path:
        return self.target / MODULE_FILE

    def build(self, **changes: str) -> BuildRecord:
        record = build(self.sources, self.target, {**self.environ, **changes})
        assert read_record(self.target) == record
        assert record.built is self.module.exists()
        assert bool(record.reason) is not record.built
        return record


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


@needs_compiler
def test_a_module_is_built_and_loads(yard: Yard) -> None:
    record = yard.build()
    assert record.forms == ("avx512",)
    assert record.left_out == ()
    assert record.compiler
    assert load_module(yard.module).levels()[1] == 512


@needs_compiler
def test_shared_inline_functions_come_from_the_least_demanding_file(yard: Yard) -> None:
    """Its first number is of a function that the AVX512 file contains too."""
    (yard.sources / "a_avx512.cpp").rename(yard.sources / "aa_avx512.cpp")
    (yard.sources / "module.cpp").rename(yard.sources / "zz.cpp")
    yard.build()
    assert load_module(yard.module).levels()[0] == 1


@needs_compiler
def test_a_second_build_compiles_nothing_wherever_it_puts_the_module(yard: Yard, tmp_path: Path) -> None:
    compiler = WatchedCompiler(tmp_path)
    yard.environ["CXX"] = str(compiler.path)
    yard.build()
    assert compiler.asked() == ["-shared", "a_avx512.cpp", "module.cpp"]
    first = yard.module.read_bytes()
    yard.target = tmp_path / "elsewhere"
    yard.build()
    assert compiler.asked() == []
    assert yard.module.read_bytes() == first


@needs_compiler
def test_only_what_changed_is_compiled_again(yard: Yard, tmp_path: Path) -> None:
    compiler = WatchedCompiler(tmp_path)
    yard.environ["CXX"] = str(compiler.path)
    yard.build()
    compiler.asked()
    (yard.sources / "a_avx512.cpp").write_text("int avx512_level() { return 7; }\n")
    yard.build()
    assert compiler.asked() == ["-shared", "a_avx512.cpp"]
    assert load_module(yard.module).levels() == (1, 7)
    level = yard.sources / "level.h"
    level.write_text(level.read_text().replace("kLevel = 1;", "kLevel = 2;"))
    yard.build()
    assert compiler.asked() == ["-shared", "module.cpp"]


@needs_compiler
def test_other_flags_compile_everything_again(yard: Yard, tmp_path: Path) -> None:
    compiler = WatchedCompiler(tmp_path)
    yard.environ["CXX"] = str(compiler.path)
    yard.build()
    compiler.asked()
    yard.build(CXXFLAGS="-DNDEBUG")
    assert compiler.asked() == ["-shared", "a_avx512.cpp", "module.cpp"]


@needs_compiler
def test_a_form_that_the_compiler_does_not_know_is_left_out(yard: Yard, tmp_path: Path) -> None:
    compiler = WatchedCompiler(tmp_path, unknown="-mavx512f")
    record = yard.build(CXX=str(compiler.path))
    assert (record.forms, record.left_out) == ((), ("avx512",))
    assert compiler.asked() == ["-shared", "module.cpp"]
    assert load_module(yard.module).levels() == (1, -1)


@needs_compiler
def test_the_module_in_use_is_replaced_and_not_written_over(yard: Yard) -> None:
    yard.build()
    before = yard.module.stat().st_ino
    with yard.module.open("rb") as in_use:
        content = in_use.read()
        in_use.seek(0)
        level = yard.sources / "level.h"
        level.write_text(level.read_text().replace("kLevel = 1;", "kLevel = 2;"))
        yard.build()
        assert in_use.read() == content
    assert yard.module.stat().st_ino != before
    assert sorted(path.name for path in yard.target.iterdir()) == ["_build.json", MODULE_FILE]


@needs_compiler
def test_what_does_not_compile_takes_the_old_module_away_and_says_why(
    yard: Yard, capfd: pytest.CaptureFixture[str]
) -> None:
    yard.build()
    (yard.sources / "module.cpp").write_text("int broken( { return 1; }\n")
    record = yard.build()
    assert not record.built
    assert "could not make module.cpp: module.cpp:1:" in record.reason
    warning = capfd.readouterr().err
    assert warning.startswith("warning: the native CPU step of Wye was not built: ")
    assert "int broken(" in warning


@needs_compiler
def test_what_compiles_but_does_not_load_is_a_failure(yard: Yard) -> None:
    (yard.sources / "a_avx512.cpp").write_text("// avx512_level is nowhere\n")
    record = yard.build()
    assert not record.built
    assert "what was compiled does not load: ImportError: the module: undefined symbol" in record.reason


def test_without_a_compiler_the_reason_says_what_to_install(yard: Yard, capfd: pytest.CaptureFixture[str]) -> None:
    record = yard.build(PATH="/nowhere")
    assert record.reason.startswith("no C++ compiler was found when Wye was installed; install g++")
    assert capfd.readouterr().err.count("was not built") == 1


@pytest.mark.parametrize(
    ("program", "message"),
    [("/nowhere/g++", "CXX is '/nowhere/g++', but there is no such program"), ("false", "does not tell its version")],
)
def test_a_compiler_that_was_named_and_is_none_is_not_replaced(yard: Yard, program: str, message: str) -> None:
    assert message in yard.build(CXX=program).reason


def test_wye_native_0_builds_nothing(yard: Yard) -> None:
    yard.target.mkdir()
    yard.module.touch()
    assert yard.build(WYE_NATIVE="0").reason == "WYE_NATIVE=0 was set when Wye was installed"
    assert not Path(yard.environ["WYE_NATIVE_CACHE"]).exists()


def test_wye_native_1_fails_where_nothing_can_be_built(yard: Yard) -> None:
    with pytest.raises(BuildFailure, match="no C\\+\\+ compiler"):
        yard.build(WYE_NATIVE="1", PATH="/nowhere")
    assert read_record(yard.target) is not None


def test_any_other_wye_native_is_refused(yard: Yard) -> None:
    with pytest.raises(ValueError, match="WYE_NATIVE is 'yes'"):
        yard.build(WYE_NATIVE="yes")
    assert not yard.target.exists()


def test_another_processor_is_named(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert yard.build().reason.endswith("on x86-64, and this is linux on aarch64")


@needs_compiler
def test_missing_headers_of_python_are_named(yard: Yard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    paths = {"include": str(tmp_path), "platinclude": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    assert yard.build().reason.startswith("the headers of Python are missing")


def test_a_package_without_the_sources_installs_all_the_same(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(("c++",), "c++ 1")
    monkeypatch.setattr(building, "find_compiler_for_this_machine", lambda environ: compiler)
    yard.sources = yard.sources.parent / "absent"
    assert yard.build().reason == "its sources are not there"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"built": true}', '{"forms": [], "left_out": [], "new": 1}'])
def test_a_damaged_record_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "_build.json").write_text(text)
    assert read_record(tmp_path) is None
