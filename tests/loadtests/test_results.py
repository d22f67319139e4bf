"""What a result file says of the machine, and what the documentation makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tables_results import _where
from loadtests import results
from loadtests.results import environment


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2 avx avx2", "AVX2"),
        ("avx2 avx512f avx512_bf16", "AVX512-BF16"),
        ("avx512f amx_bf16 avx512_bf16 avx2", "AMX"),
        ("fpu sse2", None),
    ],
)
def test_the_machine_is_told_with_its_widest_vectors(
    flags: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: Some Processor\nflags\t\t: {flags}\n")
    monkeypatch.setattr(results, "_CPUINFO", file)
    told = environment()
    assert (told["cpu"], told["vectors"]) == ("Some Processor", expected)
    line = _where(told, "programs")
    assert ("cores with " in line) is (expected is not None)
    assert expected is None or f"cores with {expected};" in line


def test_files_from_before_vectors_were_told_of_are_read_too() -> None:
    told = environment()
    del told["vectors"]
    assert "cores;" in _where(told, "programs")
