"""The native step is clean under the address and undefined-behaviour sanitizers; `make sanitize` tries all forms."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import engine.native
from tests.native.forms import FORMS, needs_native

DIRECTORY = Path(engine.native.__path__[0]) / "sanitize"
FORM = FORMS[-1]
"""The one that compiles fastest, and that the most processors have."""

CHECKS = ("team", "packing", "tables", "steps", "sampling")


@pytest.fixture
def compiler(tmp_path: Path) -> str:
    """One that can link its sanitizers."""
    found = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if found is None or shutil.which("make") is None:
        pytest.skip("there is no C++ compiler or no make")
    (tmp_path / "probe.cpp").write_text("int main() {}\n")
    command = [found, "-fsanitize=address,undefined", "probe.cpp", "-o", "probe"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{found} has no sanitizers")
    return found


@needs_native
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_checks_of_one_form_are_clean(compiler: str) -> None:
    arguments = [f"FORMS={FORM}", "SECONDS_EACH=0.1", f"CXX={compiler}"]
    command = ["make", "-C", str(DIRECTORY), f"-j{len(os.sched_getaffinity(0))}", "address", *arguments]
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    for check in CHECKS:
        assert re.search(rf"^{check}$", result.stdout, re.MULTILINE)
    assert re.search(rf"^  {FORM} +\d+ cases$", result.stdout, re.MULTILINE)
    assert "all is well" in result.stdout


@needs_native
def test_every_check_of_the_driver_is_one_that_is_run() -> None:
    listed = re.findall(r'\{"(\w+)", wye::sanitize::check_', (DIRECTORY / "main.cpp").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(CHECKS)
