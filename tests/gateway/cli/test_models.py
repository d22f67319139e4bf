"""`wye models`, from the outside: output, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.sources.store import ModelStore
from gateway.cli import app
from tests.engine.sources.files import hub_files, write_files
from tests.engine.sources.hub_stand_in import Repository, run_hub


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_files(tmp_path / "local", hub_files())


def wye(*args: object, home: Path | None = None) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"WYE_HOME": str(home)} if home else None)


def test_an_imported_model_is_listed_shown_and_removed(home: Path, directory: Path) -> None:
    imported = wye("models", "import", directory, "org/mine", "--json", home=home)
    assert imported.exit_code == 0
    path = json.loads(imported.stdout)["path"]
    assert Path(path).is_dir()
    listed = json.loads(wye("models", "list", "--json", home=home).stdout)
    assert [(model["name"], model["format"]) for model in listed] == [("org/mine", "huggingface")]
    assert "org/mine" in wye("models", "list", home=home).stdout
    shown = json.loads(wye("models", "show", "org/mine", "--json", home=home).stdout)
    assert shown["path"] == path
    assert {file["path"] for file in shown["files"]} >= {"config.json", "model.safetensors"}
    assert path in wye("models", "show", "org/mine", home=home).stdout
    assert wye("models", "rm", "org/mine", home=home).exit_code == 0
    assert json.loads(wye("models", "list", "--json", home=home).stdout) == []
    assert not Path(path).exists()


def test_an_empty_list_is_json_on_stdout_and_advice_on_stderr(home: Path) -> None:
    result = wye("models", "list", home=home)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "wye models pull smollm2-135m" in result.stderr
    assert json.loads(wye("models", "list", "--json", home=home).stdout) == []


def test_pull_tells_where_the_model_lies_and_whether_it_was_fetched(home: Path, tmp_path: Path) -> None:
    with run_hub() as hub:
        hub.repositories["org/tiny"] = Repository(hub_files())
        args = ("models", "pull", "hf:org/tiny", "--endpoint", hub.endpoint, "--json")
        first = wye(*args, home=home)
        assert first.exit_code == 0, first.stderr
        assert "downloading hf:org/tiny" in first.stderr
        assert json.loads(first.stdout)["fetched"] is True
        assert json.loads(wye(*args, home=home).stdout)["fetched"] is False
        for_people = wye(*args[:-1], home=home)
        assert for_people.stdout == ""
        assert "org/tiny: already here" in for_people.stderr


def test_verify_finds_damage_and_says_so_in_the_exit_code(home: Path, directory: Path) -> None:
    stored = ModelStore(home).import_(directory, "mine")
    assert "are as they were stored" in wye("models", "show", "mine", "--verify", home=home).stderr
    (stored.path / "tokenizer.json").unlink()
    damaged = wye("models", "show", "mine", "--verify", "--json", home=home)
    assert damaged.exit_code == 6
    assert json.loads(damaged.stdout)["problems"] == ["tokenizer.json is missing or has another length"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("models", "show", "absent"), 3, "no model 'absent' is stored"),
        (("models", "rm", "absent"), 3, "no model 'absent' is stored"),
        (("models", "rm", "./x"), 2, "only by name"),
        (("models", "pull", "s3:x"), 2, "no known kind of source"),
        (("models", "pull", "org/name"), 2, "did you mean hf:org/name"),
        (("models", "pull", "hf:org/x", "--offline"), 5, "offline mode"),
        (("models", "pull", "hf:org/x", "--endpoint", "http://127.0.0.1:9"), 5, "could not be fetched"),
        (("models", "import", "/nowhere", "x"), 3, "no file and no directory"),
        (("models", "import", "/", "x"), 6, "no config.json"),
        (("models", "import", "/", "a/b/c"), 2, "cannot be the name"),
        (("models", "frobnicate"), 2, "No such command"),
        (("models", "pull", "--frobnicate"), 2, "No such option"),
    ],
)
def test_each_failure_is_one_clear_message_and_its_exit_code(
    home: Path, args: tuple[str, ...], code: int, message: str
) -> None:
    result = wye(*args, home=home)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(home: Path) -> None:
    result = wye("--debug", "models", "show", "absent", home=home)
    assert result.exit_code == 3
    assert "Traceback" in result.stderr


def test_an_unforeseen_error_is_one_line_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(ModelStore, "list", fail)
    result = wye("models", "list", home=home)
    assert result.exit_code == 1
    assert "ZeroDivisionError: odd" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interrupt_ends_with_130(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelStore, "list", interrupt)
    result = wye("models", "list", home=home)
    assert result.exit_code == 130


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = wye("models", "import", directory, "mine", home=tmp_path / "file")
    assert result.exit_code == 1
    assert "Not a directory" in result.stderr
