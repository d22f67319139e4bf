"""The doctor: works on a bare Python, tells what is missing, never fails itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from engine.config import EngineConfig
from engine.cuda.plan import describe_forms
from engine.native import library
from engine.native.building.record import BuildRecord
from engine.native.library import NativeStatus
from engine.resolve import Placement, place
from engine.step_choice import StepChoice
from gateway.doctor import kernels, software
from gateway.doctor.choices import examine_choices
from gateway.doctor.kernels import Probe
from gateway.doctor.native import examine_native
from gateway.doctor.report import Finding, Report
from gateway.doctor.run import examine

ROOT = Path(__file__).parents[2]
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
    assert facts["choices"]["weights"].startswith("bfloat16; also there: float32 (torch)")
    assert "fp8 (torch)" in facts["choices"]["K and V"]
    assert facts["choices"]["step"].startswith(("native", "torch"))
    assert "(best for" in facts["choices"]["attention"]
    assert facts["engine packages"]["torch"]
    assert facts["processor"]["name"]
    assert facts["model store"]["directory"] == str(tmp_path)
    assert any(item["subject"] == "model store" for item in facts["findings"])
    assert json.loads(json.dumps(facts)) == facts


def test_on_a_gpu_it_says_which_form_computes_which_width(monkeypatch: pytest.MonkeyPatch) -> None:
    def place_on_gpu(config: EngineConfig) -> Placement:
        step = StepChoice(step="cuda", reason="the fastest on a GPU")
        return replace(place(config), device=torch.device("cuda"), step=step, max_num_seqs=100)

    monkeypatch.setattr("engine.resolve.place", place_on_gpu)
    report = Report()
    examine_choices(report)
    choices = report.as_json()["choices"]
    assert choices["step"] == "cuda (the fastest on a GPU)"
    assert choices["decoding steps"] == (
        "1 lane: single, 2 to 64: narrow, more: wide; recorded for 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100 lanes"
    )


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (1, "1 lane: single; recorded for 1 lanes"),
        (3, "1 lane: single, 2 to 3: narrow; recorded for 1, 2, 3 lanes"),
    ],
)
def test_narrow_engines_have_fewer_forms(most: int, said: str) -> None:
    assert describe_forms(most) == said


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
    ("code", "found"),
    [
        ("", Probe("whole", "loads")),
        ("note = 'fine'", Probe("whole", "fine")),
        ("note, is_whole = 'half of it loads', False", Probe("impaired", "half of it loads")),
        (
            "import no_such_library",
            Probe("broken", "does not load: ModuleNotFoundError: No module named 'no_such_library'"),
        ),
        ("import os; os.abort()", Probe("broken", "crashes while loading (signal 6)")),
    ],
)
def test_a_library_is_loaded_elsewhere_and_its_failure_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, found: Probe
) -> None:
    monkeypatch.setitem(kernels.PROBES, "triton", code)
    assert kernels.probe("triton", tmp_path) == found


def pretend_xformers(directory: Path, version: str, operators: str) -> None:
    """A package like xformers with a compiled part for another CUDA."""
    package = directory / "xformers"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}")
    (package / "_cpp_lib.py").write_text(
        "_cpp_library_load_exception = OSError('built for:\\n  PyTorch 2.10 with CUDA 12.8')"
    )
    (package / "ops" / "__init__.py").touch()
    (package / "ops" / "fmha.py").write_text(
        "class Op:\n"
        "    def __init__(self, name, works): self.NAME, self.works = name, works\n"
        "    def is_available(self): return self.works\n"
        f"ALL_FW_OPS = [{operators}]\n"
    )


def test_an_xformers_whose_compiled_part_does_not_load_says_why_and_what_still_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_xformers(tmp_path, "0.0.35", "Op('cutlassF', False), Op('triton_splitKF', True)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    found = kernels.probe("xformers", tmp_path)
    assert found.state == "impaired"
    assert found.note.startswith(
        "its C++/CUDA part does not load (built for: PyTorch 2.10 with CUDA 12.8), and its own entry points refuse all "
        "attention; the attention backend works, by its Triton split-K kernel alone: decoding, prefill in blocks of 16"
    )
    assert found.note.endswith("operators that can run: triton_splitKF")


@pytest.mark.parametrize(
    ("version", "operators", "meaning"),
    [
        ("0.0.99", "Op('triton_splitKF', True)", "made for version 0.0.35 and refuses others"),
        ("0.0.35", "Op('triton_splitKF', False)", "finds no Triton or no GPU"),
    ],
)
def test_an_xformers_that_the_backend_cannot_use_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, operators: str, meaning: str
) -> None:
    pretend_xformers(tmp_path, version, operators)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    found = kernels.probe("xformers", tmp_path)
    assert found.state == "impaired"
    assert meaning in found.note


@pytest.mark.parametrize(
    ("version", "compiler", "found", "state", "meaning"),
    [
        ("0.6.14", "13.0", "13.0", "whole", "loads; nvcc 13.0 compiles kernels on first use, kept in "),
        ("0.6.14", "12.8", "13.0", "impaired", "with nvcc 12.8 for a torch of CUDA 13.0: set CUDA_HOME"),
        ("0.6.14", None, "13.0", "impaired", "cannot compile its kernels, as it does on first use: "),
        ("0.7.0", "13.0", "13.0", "impaired", "made for version 0.6.14 and refuses others"),
    ],
)
def test_a_flashinfer_says_whether_it_can_compile_its_kernels(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    version: str,
    compiler: str | None,
    found: str,
    state: str,
    meaning: str,
) -> None:
    package, tools = tmp_path / "flashinfer", tmp_path / "bin"
    (package / "jit").mkdir(parents=True)
    tools.mkdir()
    for tool in ("nvcc", "ninja", "c++"):
        if tool != "nvcc" or compiler is not None:
            (tools / tool).write_text("#!/bin/sh\n")
            (tools / tool).chmod(0o755)
    (package / "__init__.py").write_text(f"__version__ = {version!r}")
    (package / "jit" / "__init__.py").touch()
    (package / "jit" / "env.py").write_text(
        "import os\nFLASHINFER_WORKSPACE_DIR = os.environ['FLASHINFER_WORKSPACE_BASE']\n"
        "def has_flashinfer_jit_cache(): return False\n"
    )
    (package / "jit" / "cpp_ext.py").write_text(
        f"import torch\ntorch.version.cuda = {found!r}\n"
        f"def get_cuda_path(): return {str(tmp_path)!r}\ndef get_cuda_version(): return {compiler!r}\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE", raising=False)
    probed = kernels.probe("flashinfer", tmp_path / "home")
    assert probed.state == state
    assert meaning in probed.note
    assert state == "impaired" or str(tmp_path / "home" / "kernels") in probed.note


def test_missing_kernels_are_a_notice_only_where_a_gpu_could_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "installed", lambda package: None if package in {"triton", "xformers"} else "1.0")
    monkeypatch.setattr(kernels, "probe", lambda package, home: Probe("broken", "ImportError: wrong CUDA"))
    for has_cuda in (True, False):
        report = Report()
        software.examine_software(report, Path(), has_cuda=has_cuda)
        noticed = {finding.subject: finding.meaning for finding in report.findings}
        assert set(noticed) == ({"triton", "flashinfer", "xformers"} if has_cuda else set())
        assert report.is_healthy
    assert report.as_json()["optional kernels"] == {
        "triton": "not installed",
        "flashinfer": "1.0, ImportError: wrong CUDA",
        "xformers": "not installed",
    }


def test_a_library_of_which_a_part_works_is_noticed_without_advice_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "installed", lambda _: "1.0")
    monkeypatch.setattr(kernels, "probe", lambda *_: Probe("impaired", "half of it works"))
    report = Report()
    kernels.examine_kernels(report, Path(), has_cuda=True)
    assert {finding.meaning for finding in report.findings} == {"half of it works"}


def test_a_missing_package_is_a_problem_and_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed", lambda package: None if package == "fastapi" else "1.0")
    monkeypatch.setattr(kernels, "probe", lambda package, home: Probe("whole", ""))
    report = Report()
    software.examine_software(report, Path(), has_cuda=False)
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
