"""Everything about a GPU in one command: dry on a CPU every part runs, and what fails costs nobody else's numbers."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from docs.gpu_results import measured, served
from loadtests import card
from loadtests.card_parts import GPU_TESTS, PARTS, SHAPES, Setting, cases_of
from loadtests.card_run import Case, run_case
from loadtests.server import CHECKOUT

LIMIT_S = 300.0
"""The time of a command that has a long one."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def setting_of(models: Path, *, dry: bool = False, **fields: Any) -> Setting:
    device = "cpu" if dry else "cuda"
    return Setting(card="h200", device=device, models=models, dry=dry, tokenizer="made", **fields)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if part.runs_dry])
def test_every_part_runs_dry_and_leaves_its_results(part: str, models: Path, tmp_path: Path) -> None:
    assert card.main(["--dry", "--parts", part, "--out", str(tmp_path), "--models", str(models), "--workers", "1"]) == 0
    cases = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))["cases"]
    assert {one["how"] for one in cases} == {"ok"}
    assert {one["part"] for one in cases} == {part}
    told = [one for one in cases if one["result"] is not None]
    assert told
    for one in told:
        assert one["said"]
        document = json.loads((tmp_path / one["result"]).read_text(encoding="utf-8"))
        assert document["environment"]["date"]
        assert document["tables"]
    assert all((tmp_path / "logs" / f"{part}-{one['case']}.log").exists() for one in cases)


class Parsed(Exception):
    """The arguments were accepted."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dry", [False, True])
def test_every_command_takes_its_arguments(part: str, dry: bool, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, *args: Any, **fields: Any) -> argparse.Namespace:
        options: argparse.Namespace = parse(self, *args, **fields)
        raise Parsed(repr(options))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    cases = cases_of(part, setting_of(models, dry=dry, real_model="model.gguf"))
    assert cases
    for case in cases:
        written = [] if case.result is None else ["--json", case.result]
        with pytest.raises(Parsed) as parsed:
            importlib.import_module(case.module).main([*written, *case.arguments])
        assert "cpu" in str(parsed.value) or not dry or part in ("checks", "quality", "sanitizer")


def test_results_are_named_as_the_docs_look_for_them(models: Path, tmp_path: Path) -> None:
    results = {case.result for part in PARTS for case in cases_of(part, setting_of(models)) if case.result}
    kept = {path.name for path in (CHECKOUT / "loadtests" / "results").glob("*-h200*.json")}
    assert kept <= results
    assert len(results) == sum(
        case.result is not None for part in PARTS for case in cases_of(part, setting_of(models))
    )  # none writes over another's
    for name in kept:
        (tmp_path / name).write_bytes((CHECKOUT / "loadtests" / "results" / name).read_bytes())
    assert {one.shape for one in measured(tmp_path)} == set(SHAPES)
    assert served(tmp_path)


def test_all_tests_that_it_runs_are_there() -> None:
    paths = [each for arguments, _, _ in GPU_TESTS.values() for each in arguments if each.startswith("tests/")]
    assert paths
    assert all((CHECKOUT / path).exists() for path in paths)


def test_without_a_real_model_quality_is_left_out(models: Path, tmp_path: Path) -> None:
    (found,) = card.outcomes(["quality"], setting_of(models), tmp_path, 1000.0)
    assert (found.how, found.said) == ("left out", "no model was named for it")


def test_nothing_is_begun_when_no_time_is_left(models: Path, tmp_path: Path) -> None:
    found = list(card.outcomes(["steps", "http"], setting_of(models), tmp_path, 10.0))
    assert {one.how for one in found} == {"left out"}
    assert len(found) > 6


def test_a_command_that_breaks_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    case = Case(name="broken", module="loadtests.not_there", arguments=[], result="broken.json", limit_s=60)
    found = run_case("steps", case, tmp_path, 60)
    assert (found.how, found.result) == ("failed", None)
    assert found.said == "exit code 1, wrote no file"
    assert "not_there" in "".join(found.log)


def test_a_command_out_of_time_is_ended_and_what_it_wrote_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import json, sys, time; "
        "open(sys.argv[2], 'w').write(json.dumps({'passed': 3, 'failed': 0, 'skipped': 1, 'failures': []})); "
        "time.sleep(600)"
    )
    (tmp_path / "slow_case.py").write_text(script, encoding="utf-8")
    environment = {"PYTHONPATH": str(tmp_path)}
    tells = cases_of("checks", setting_of(tmp_path))[0].tell
    case = Case(
        name="slow",
        module="slow_case",
        arguments=[],
        result="r.json",
        limit_s=2 * LIMIT_S,
        environment=environment,
        tell=tells,
    )

    class Clocked(subprocess.Popen[bytes]):
        """Its time is over once it has written its result."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout != LIMIT_S:
                return super().wait(timeout)
            until(lambda: _is_json(tmp_path / "r.json"))
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Clocked)
    found = run_case("checks", case, tmp_path, LIMIT_S)
    assert (found.how, found.result) == ("out of time", "r.json")
    assert found.said == "3 passed, 0 failed, 1 skipped"


def _is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_what_a_command_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    leaves = "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    case = Case(
        name="leaves", module="timeit", arguments=["-n", "1", "-r", "1", "-s", "import subprocess", leaves], limit_s=60
    )
    assert run_case("http", case, tmp_path, 60).how == "ok"
    pid = int((tmp_path / "logs" / "http-leaves.log").read_text(encoding="utf-8").split()[0])
    until(lambda: _is_gone(pid))


def test_checks_keep_what_tests_come_to(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.mark.skip(reason='not today')\ndef test_left_out(): pass\n",
        encoding="utf-8",
    )
    path = tmp_path / "checks.json"
    command = [sys.executable, "-m", "loadtests.card_checks", "--json", str(path), "--"]
    done = subprocess.run(
        [*command, str(tmp_path), f"--rootdir={tmp_path}", "-n", "2"],
        cwd=CHECKOUT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [found[key] for key in ("passed", "failed", "skipped", "ended")] == [1, 1, 1, True]
    (failure,) = found["failures"]
    assert failure["test"].endswith("test_bad")
    assert "assert 1 == 2" in failure["text"]
    assert list(found["skips"]) == ["Skipped: not today"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H200\n", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("Tesla", "gpu"),
    ],
)
def test_a_card_has_a_short_name(name: str, short: str) -> None:
    assert card.slug(name) == short


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--dry", "--parts", "steps,nonsense"], "there is no part 'nonsense'"),
        (["--dry", "--parts", ","], "there is no part"),
        (["--dry", "--real-model", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
    ],
)
def test_what_is_not_there_is_refused_before_any_work(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        card.main([*arguments, "--out", str(tmp_path / "out")])
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
