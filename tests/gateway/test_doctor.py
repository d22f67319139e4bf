"""The doctor: works on a bare Python, tells what is missing, never fails itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from engine.native import library
from engine.native.building.record import BuildRecord
from engine.native.library import NativeStatus
from gateway.doctor import software
from gateway.doctor.native import examine_native
from gateway.doctor.report import Finding, Report
from gateway.doctor.run import examine

BUILT = BuildRecord(built=True, compiler="g++ 12", forms=("avx2", "avx512"), left_out=("amx",), sources="other")
BLOCKER = """
import importlib.abc, importlib.metadata, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in BLOCKED:
            raise ModuleNotFoundError(f'No module named {name!r}')
BLOCKED = set(%r)
sys.meta_path.insert(0, Blocker())
sys.argv = ['doctor', *%r]
import runpy
runpy.run_module('gateway.doctor', run_name='__main__')
"""


def run_without(blocked: list[str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKER % (blocked, list(args))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_complete_installation_is_healthy_and_says_what_it_would_choose(tmp_path: Path) -> None:
    report = examine(tmp_path)
    assert report.is_healthy
    facts = report.as_json()
    assert facts["choices"]["device"].startswith(("cpu", "cuda:0"))
    assert facts["choices"]["weights"] == "bfloat16"
    assert facts["choices"]["step"].startswith(("native", "torch"))
    assert "(best for" in facts["choices"]["attention"]
    assert facts["engine packages"]["torch"]
    assert facts["processor"]["name"]
    assert facts["model store"]["directory"] == str(tmp_path)
    assert any(item["subject"] == "model store" for item in facts["findings"])
    assert json.loads(json.dumps(facts)) == facts


def test_it_runs_where_the_gateways_dependencies_are_missing(tmp_path: Path) -> None:
    blocked = ["fastapi", "pydantic", "typer", "rich", "uvicorn", "huggingface_hub"]
    result = run_without(blocked, "--home", str(tmp_path))
    assert "attention" in result.stdout
    assert result.stderr == ""
    data = json.loads(run_without(blocked, "--json", "--home", str(tmp_path)).stdout)
    assert "torch" in data


def test_it_runs_without_torch_and_calls_that_a_problem(tmp_path: Path) -> None:
    result = run_without(["torch"], "--json", "--home", str(tmp_path))
    data = json.loads(result.stdout)
    assert result.returncode == 1
    assert not data["healthy"]
    assert any(item["subject"] == "torch" and item["severity"] == "problem" for item in data["findings"])


@pytest.mark.parametrize(
    ("code", "loads", "note"),
    [
        ("", True, "loads"),
        ("note = 'fine'", True, "fine"),
        ("note, impaired = 'half of it loads', True", False, "half of it loads"),
        ("import no_such_library", False, "does not load: ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os; os.abort()", False, "crashes while loading (signal 6)"),
    ],
)
def test_a_library_is_loaded_elsewhere_and_its_failure_is_quoted(
    monkeypatch: pytest.MonkeyPatch, code: str, loads: bool, note: str
) -> None:
    monkeypatch.setitem(software.PROBES, "triton", code)
    assert software.probe("triton") == (loads, note)


def test_an_xformers_whose_compiled_part_does_not_load_says_why_and_what_still_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "xformers"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_cpp_lib.py").write_text(
        "_cpp_library_load_exception = OSError('built for:\\n  PyTorch 2.10 with CUDA 12.8')"
    )
    (package / "ops" / "__init__.py").touch()
    (package / "ops" / "fmha.py").write_text(
        "class Op:\n"
        "    def __init__(self, name, works): self.NAME, self.works = name, works\n"
        "    def is_available(self): return self.works\n"
        "ALL_FW_OPS = [Op('cutlassF', False), Op('triton_splitKF', True)]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert software.probe("xformers") == (
        False,
        "its C++/CUDA part does not load (built for: PyTorch 2.10 with CUDA 12.8); "
        "attention operators that can run: triton_splitKF",
    )


def test_missing_kernels_are_a_notice_only_where_a_gpu_could_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed", lambda package: None if package in {"triton", "xformers"} else "1.0")
    monkeypatch.setattr(software, "probe", lambda package: (False, "ImportError: wrong CUDA"))
    for has_cuda in (True, False):
        report = Report()
        software.examine_software(report, has_cuda=has_cuda)
        noticed = {finding.subject for finding in report.findings}
        assert noticed == ({"triton", "flashinfer", "xformers"} if has_cuda else set())
        assert report.is_healthy


def test_a_missing_package_is_a_problem_and_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed", lambda package: None if package == "fastapi" else "1.0")
    monkeypatch.setattr(software, "probe", lambda package: (True, ""))
    report = Report()
    software.examine_software(report, has_cuda=False)
    assert report.findings == [Finding("problem", "fastapi", "`wye serve` and `wye models` need it")]
    assert not report.is_healthy
    assert "problem: fastapi" in report.as_text()
    assert report.as_text().endswith("serving will not work like this")


def test_a_native_step_that_is_here_is_shown_with_its_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, NativeStatus(True, "", ("avx512", "avx2"), "avx2"), BUILT)
    report = Report()
    examine_native(report, has_cuda=False)
    facts = report.as_json()["native step"]
    assert facts["built"] == "by g++ 12, forms avx2, avx512"
    assert facts["left out"].startswith("amx")
    assert facts["forms of this processor"] == "avx512, avx2"
    assert facts["form"] == "avx2 (WYE_NATIVE_FORM)"


def test_a_native_step_built_from_other_sources_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, NativeStatus(True, "", ("avx2",), "avx2"), BUILT)
    report = Report()
    examine_native(report, has_cuda=False)
    assert any("have changed since it was built" in finding.meaning for finding in report.findings)
    assert report.is_healthy


def test_why_there_is_no_native_step_is_a_notice_except_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(
        monkeypatch, NativeStatus(False, "it was not built: no C++ compiler"), BuildRecord(False, "no C++ compiler")
    )
    for has_cuda in (False, True):
        report = Report()
        examine_native(report, has_cuda=has_cuda)
        assert report.as_json()["native step"]["state"] == "not available: it was not built: no C++ compiler"
        assert bool(report.findings) is not has_cuda
        assert report.is_healthy


def test_a_form_that_the_processor_does_not_have_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("_native")
    module.__dict__["forms"] = lambda: ["avx2"]
    monkeypatch.setattr(library, "native_module", lambda: module)
    monkeypatch.setenv(library.FORM_VARIABLE, "avx1024")
    report = Report()
    examine_native(report, has_cuda=False)
    assert not report.is_healthy
    assert "WYE_NATIVE_FORM is 'avx1024', but here it can be avx2" in report.findings[0].meaning


def _pretend(monkeypatch: pytest.MonkeyPatch, status: NativeStatus, record: BuildRecord) -> None:
    monkeypatch.setattr(library, "native_status", lambda: status)
    monkeypatch.setattr(library, "build_record", lambda: record)
