"""Which file is compiled with which flags, and in which order files are linked."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import engine.native
from engine.native.building.build import unit_flags
from engine.native.building.compiler import find_compiler
from engine.native.building.flags import FORMS, form_of, in_link_order
from engine.native.building.sources import source_files, whole_digest, with_includes

SOURCES = Path(engine.native.__path__[0]) / "src"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("form_avx2.cpp", "avx2"),
        ("sampling_avx512.cpp", "avx512"),
        ("form_avx512bf16.cpp", "avx512bf16"),
        ("form_avx512vnni.cpp", "avx512vnni"),
        ("form_amx.cpp", "amx"),
        ("team.cpp", None),
        ("avx2.cpp", None),
        ("avx2_tables.cpp", None),
    ],
)
def test_the_end_of_a_name_says_which_instructions_a_file_may_use(name: str, form: str | None) -> None:
    found = form_of(Path(name))
    assert (found.name if found else None) == form


def test_only_files_of_a_form_get_its_flags() -> None:
    assert not [flag for flag in unit_flags(Path("team.cpp"), ()) if flag.startswith("-m")]
    amx = unit_flags(Path("form_amx.cpp"), ())
    assert {"-mamx-tile", "-mavx512bf16", "-mavx512vnni", "-mavx512f", "-mfma", "-mf16c"} <= set(amx)
    avx2 = unit_flags(Path("form_avx2.cpp"), ())
    assert "-mavx2" in avx2
    assert not [flag for flag in avx2 if "avx512" in flag or "amx" in flag]


def test_each_form_has_the_flags_of_those_before_it() -> None:
    for weaker, stronger in itertools.pairwise(FORMS):
        assert set(weaker.flags) < set(stronger.flags)


def test_arithmetic_is_never_reassociated_or_contracted() -> None:
    for name in ("team.cpp", *(f"form_{form.name}.cpp" for form in FORMS)):
        flags = unit_flags(Path(name), ())
        assert "-ffp-contract=off" in flags
        assert not {
            "-ffast-math",
            "-Ofast",
            "-funsafe-math-optimizations",
            "-fassociative-math",
            "-march=native",
        } & set(flags)


def test_a_form_that_is_left_out_is_told_to_all_other_files() -> None:
    for name in ("forms.cpp", "form_avx2.cpp"):
        assert "-DWYE_NO_AMX" in unit_flags(Path(name), (FORMS[-1],))
        assert not [flag for flag in unit_flags(Path(name), ()) if flag.startswith("-DWYE_NO")]


def test_the_least_demanding_files_are_linked_first() -> None:
    files = [Path(f"{name}.cpp") for name in ("form_amx", "a_avx512", "z", "form_avx2", "form_avx512bf16", "b")]
    assert [file.stem for file in in_link_order(files)] == [
        *("b", "z", "form_avx2", "a_avx512", "form_avx512bf16", "form_amx"),
    ]


def test_includes_are_followed_and_a_loop_of_them_ends(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include "a.h"\n#include <vector>\n  #  include "missing.h"\n')
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "a.h"\n')
    (tmp_path / "c.h").write_text("// nobody includes this\n")
    assert [file.name for file in with_includes(tmp_path / "a.cpp")] == ["a.cpp", "a.h", "b.h"]


def test_a_digest_of_all_sources_changes_with_every_file_that_counts(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include "a.h"\n')
    (tmp_path / "a.h").write_text("int a;\n")
    before = whole_digest(tmp_path)
    (tmp_path / "README").write_text("no source\n")
    assert whole_digest(tmp_path) == before
    (tmp_path / "a.h").write_text("int b;\n")
    assert whole_digest(tmp_path) != before


def test_no_sources_have_no_digest(tmp_path: Path) -> None:
    assert whole_digest(tmp_path) == ""
    assert whole_digest(tmp_path / "absent") == ""


def test_no_source_is_named_after_a_form_that_has_no_flags() -> None:
    files = source_files(SOURCES)
    assert files
    for file in files:
        assert bool(re.search("_(sse|avx|amx)[a-z0-9]*$", file.stem)) is (form_of(file) is not None), file.name


def test_the_first_usual_compiler_on_the_path_is_taken(tmp_path: Path) -> None:
    for name in ("clang++", "g++"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} 99\n")
        program.chmod(0o755)
    compiler = find_compiler({"PATH": str(tmp_path), "CXXFLAGS": "-O1 -DNAME='a b'", "LDFLAGS": "-Wl,-s"})
    assert compiler.command == (str(tmp_path / "g++"),)
    assert compiler.title == "g++ 99"
    assert (compiler.flags, compiler.link_flags) == (("-O1", "-DNAME=a b"), ("-Wl,-s",))


def test_a_compiler_with_arguments_may_be_named(tmp_path: Path) -> None:
    program = tmp_path / "wrapper"
    program.write_text('#!/bin/sh\necho "$1 7"\n')
    program.chmod(0o755)
    compiler = find_compiler({"PATH": "", "CXX": f"{program} c++"})
    assert compiler.command == (str(program), "c++")
    assert compiler.title == "c++ 7"
